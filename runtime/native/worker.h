// Attention of queries over keys and values that stay where they are, in the blocks of a paged cache.
//
// A piece of work is a few queries of one sequence with all query heads of one key head, so that each key is
// read once for them. Keys are taken in tiles that begin at multiples of TILE, whatever the queries, with the
// softmax kept up to date tile by tile (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018): a row's result depends neither on the chunk it is computed in nor on other sequences.
#pragma once
#include <algorithm>
#include <vector>

#include "attention.h"
#include "product.h"
#include "team.h"
#include "transpose.h"

namespace {

constexpr int TILE = 64, MOST_TILE_ROWS = 192;

// How a format is multiplied: in pairs as it is, or as floats.
template <class T> struct Multiplied { using Mac = Floats; };
#if defined(__AVX512BF16__)
template <> struct Multiplied<bf16> { using Mac = Pairs; };
#endif

template <class T> void pack_row(const T* from, int width, uint32_t* to, int num_words) {
    using Mac = typename Multiplied<T>::Mac;
    if constexpr (Mac::PER_WORD == 2) {
        std::memcpy(to, from, sizeof(T) * size_t(width));
        if (2 * num_words > width) std::memset((uint16_t*)to + width, 0, 2 * size_t(2 * num_words - width));
    } else {
        for (int i = 0; i < num_words; i += LANES)
            store((float*)to + i, i < width ? load_part(from + i, width - i) : zero());
    }
}

int rounded_up(int n, int step) { return (n + step - 1) / step * step; }

// One thread's work on one layer of a step.
template <class T> class Worker {
    using Mac = typename Multiplied<T>::Mac;
    static constexpr int PER = Mac::PER_WORD;

  public:
    Worker(const Layer& layer, const Sequences& sequences, Rows q, Rows out)
        : l_(layer), s_(sequences), q_(q), out_(out), group_(layer.num_heads / layer.num_key_heads),
          key_words_(rounded_up((layer.key_width + PER - 1) / PER, LANES)),
          value_columns_(rounded_up(layer.value_width, LANES)) {
        static thread_local Room room;
        const size_t rows = size_t(std::max(MOST_TILE_ROWS, group_));
        const size_t words[] = {rows * size_t(key_words_), TILE * size_t(key_words_), TILE * size_t(value_columns_),
                                rows * TILE,               rows * TILE,               rows * size_t(value_columns_),
                                LANES * size_t(key_words_), rows,                     rows};
        uint32_t** places[] = {&queries_, &keys_, &values_, &scores_, &weights_, &sums_, &spare_, &most_, &total_};
        size_t all = 0;
        for (const size_t n : words) all += (n + 15) / 16 * 16;
        auto* at = (uint32_t*)room.take(4 * all);
        for (int i = 0; i < 9; i++) {
            *places[i] = at;
            at += (words[i] + 15) / 16 * 16;
        }
    }

    static int queries_at_once(const Layer& layer) {
        return std::max(1, MOST_TILE_ROWS / (layer.num_heads / layer.num_key_heads));
    }

    // The queries `first ... first + num` of a sequence, for one key head.
    void attend(int64_t sequence, int64_t first, int num, int key_head) {
        const int64_t start = s_.start[sequence] + first, position = s_.position[sequence] + first;
        const auto* table = (const int64_t*)s_.table[sequence];
        const int rows = num * group_;
        begin(start, rows, key_head);
        const int64_t end = position + num;
        const int64_t begin = l_.window ? std::max<int64_t>(0, position - l_.window + 1) / TILE * TILE : 0;
        for (int64_t at = begin; at < end; at += TILE) {
            const int n = int(std::min<int64_t>(TILE, end - at));
            pack_keys(table, at, n, int(std::min<int64_t>(TILE, end - at - n)), key_head);
            const int vectors = (n + LANES - 1) / LANES;
            product<Mac>(rows, vectors, queries_, key_words_, keys_, TILE, (l_.key_width + PER - 1) / PER,
                         (float*)scores_, TILE, false);
            for (int row = 0; row < rows; row++) weigh(row, position + row / group_ - at, vectors * LANES);
            pack_values(table, at, n, key_head);
            product<Mac>(rows, value_columns_ / LANES, weights_, TILE, values_, value_columns_, (n + PER - 1) / PER,
                         (float*)sums_, value_columns_, true);
        }
        finish(start, rows, key_head);
    }

  private:
    const T* slot(const void* cache, const int64_t* table, int64_t at, int key_head, int width) const {
        const int64_t slot = table[at / l_.block_size] * l_.block_size + at % l_.block_size;
        return (const T*)cache + (slot * l_.num_key_heads + key_head) * width;
    }

    void begin(int64_t start, int rows, int key_head) {
        for (int row = 0; row < rows; row++) {
            const int head = key_head * group_ + row % group_;
            const T* q = (const T*)q_.at + (start + row / group_) * q_.row + head * q_.head;
            pack_row(q, l_.key_width, queries_ + row * key_words_, key_words_);
            ((float*)most_)[row] = l_.sinks ? l_.sinks[head] : -INFINITY;
            ((float*)total_)[row] = l_.sinks ? 1.f : 0.f;
        }
        std::memset(sums_, 0, 4 * size_t(rows) * size_t(value_columns_));
    }

    static void prefetch(const T* at, int width) {
        for (int i = 0; i < width; i += int(64 / sizeof(T))) _mm_prefetch((const char*)(at + i), _MM_HINT_T0);
    }

    // n keys from position `at` on, word by word side by side; fetches what comes `num_next` beyond.
    void pack_keys(const int64_t* table, int64_t at, int n, int num_next, int key_head) {
        const bool as_it_is = PER == 2 && l_.key_width % (2 * LANES) == 0;
        for (int i = 0; i < n; i += LANES) {
            const uint32_t* rows[LANES];
            for (int j = 0; j < LANES; j++) {
                if (i + j >= n) {
                    rows[j] = rows[j - 1];  // masked, but a number
                    continue;
                }
                const T* key = slot(l_.keys, table, at + i + j, key_head, l_.key_width);
                prefetch(slot(l_.values, table, at + i + j, key_head, l_.value_width), l_.value_width);
                if (i + j < num_next)
                    prefetch(slot(l_.keys, table, at + TILE + i + j, key_head, l_.key_width), l_.key_width);
                rows[j] = (const uint32_t*)key;
                if (!as_it_is) {
                    pack_row(key, l_.key_width, spare_ + j * key_words_, key_words_);
                    rows[j] = spare_ + j * key_words_;
                }
            }
            for (int word = 0; word < key_words_; word += LANES) transpose(rows, word, keys_ + word * TILE + i, TILE);
        }
    }

    void pack_values(const int64_t* table, int64_t at, int n, int key_head) {
        for (int i = 0; i < n; i += PER) {
            const T* a = slot(l_.values, table, at + i, key_head, l_.value_width);
            uint32_t* to = values_ + i / PER * value_columns_;
            if constexpr (PER == 1) {
                pack_row(a, l_.value_width, to, value_columns_);
            } else {
                const bool has_two = i + 1 < n;
                const T* b = has_two ? slot(l_.values, table, at + i + 1, key_head, l_.value_width) : a;
                for (int e = 0; e < value_columns_; e += LANES) pack_pair(a, has_two ? b : nullptr, e, to + e);
            }
        }
    }

    void pack_pair(const T* a, const T* b, int e, uint32_t* to) const {
        const int n = l_.value_width - e;
        if (n >= LANES) {
            const vi low = widen((const uint16_t*)(a + e));
            return store_words(to, b ? either(low, left<16>(widen((const uint16_t*)(b + e)))) : low);
        }
        uint16_t low[LANES] = {}, high[LANES] = {};
        std::memcpy(low, a + e, 2 * size_t(n));
        if (b) std::memcpy(high, b + e, 2 * size_t(n));
        store_words(to, either(widen(low), left<16>(widen(high))));
    }

    // A row's scores become weights; `last` is the column of its own position, n the columns.
    void weigh(int row, int64_t last, int n) {
        float* scores = (float*)scores_ + row * TILE;
        uint32_t* weights = weights_ + row * TILE;
        const int end = int(std::min<int64_t>(last + 1, n));
        const int first = int(l_.window ? std::min<int64_t>(std::max<int64_t>(0, last + 1 - l_.window), TILE) : 0);
        float& most = ((float*)most_)[row];
        float& total = ((float*)total_)[row];
        if (end <= first) return std::memset(weights, 0, 4 * TILE), void();
        vf highest = set1(-INFINITY);
        for (int i = 0; i < n; i += LANES) {
            vf score = load(scores + i) * set1(l_.scaling);
            if (l_.softcap != 0) score = tanh(score * set1(1 / l_.softcap)) * set1(l_.softcap);
            if (first > i || end < i + LANES) score = only(score, first - i, end - i);
            store(scores + i, score);
            highest = max(score, highest);
        }
        const float now = std::max(most, largest(highest));
        const float kept = most == now ? 1.f : std::exp(most - now);
        vf sums = zero();
        for (int i = 0; i < n; i += LANES) {
            const vf weight = exp(load(scores + i) - set1(now));
            sums = sums + weight;
            store_weight(weights, i, weight);
        }
        most = now;
        total = total * kept + sum(sums);
        float* out = (float*)sums_ + row * value_columns_;
        if (kept != 1.f)
            for (int e = 0; e < value_columns_; e += LANES) store(out + e, load(out + e) * set1(kept));
    }

    static INLINE void store_weight(uint32_t* weights, int i, vf weight) {
#if defined(__AVX512BF16__)
        if constexpr (PER == 2)
            return _mm256_storeu_si256((__m256i*)((bf16*)weights + i), (__m256i)_mm512_cvtneps_pbh(weight));
#endif
        store((float*)weights + i, weight);
    }

    void finish(int64_t start, int rows, int key_head) {
        for (int row = 0; row < rows; row++) {
            const int head = key_head * group_ + row % group_;
            T* out = (T*)out_.at + (start + row / group_) * out_.row + head * out_.head;
            const float* sums = (const float*)sums_ + row * value_columns_;
            const vf part = set1(1 / ((const float*)total_)[row]);
            for (int e = 0; e < l_.value_width; e += LANES)
                store_part(out + e, load(sums + e) * part, l_.value_width - e);
        }
    }

    const Layer& l_;
    const Sequences& s_;
    const Rows q_, out_;
    const int group_, key_words_, value_columns_;
    uint32_t *queries_, *keys_, *values_, *scores_, *weights_, *sums_, *spare_, *most_, *total_;
};

// The pieces of work of one layer of a step.
class Pieces {
  public:
    Pieces(const Sequences& s, int queries_at_once, int num_key_heads)
        : s_(s), at_once_(queries_at_once), num_key_heads_(num_key_heads), first_(size_t(s.num_sequences) + 1) {
        for (int64_t i = 0; i < s.num_sequences; i++)
            first_[size_t(i) + 1] = first_[size_t(i)] + (s.start[i + 1] - s.start[i] + at_once_ - 1) / at_once_;
    }
    int64_t size() const { return first_.back() * num_key_heads_; }

    template <class T> void attend(Worker<T>& worker, int64_t piece) const {
        const int64_t tile = piece / num_key_heads_;
        const int64_t sequence = std::upper_bound(first_.begin(), first_.end(), tile) - first_.begin() - 1;
        const int64_t first = (tile - first_[size_t(sequence)]) * at_once_;
        const int64_t left = s_.start[sequence + 1] - s_.start[sequence] - first;
        worker.attend(sequence, first, int(std::min<int64_t>(at_once_, left)), int(piece % num_key_heads_));
    }

  private:
    const Sequences& s_;
    const int at_once_, num_key_heads_;
    std::vector<int64_t> first_;
};

}  // namespace
