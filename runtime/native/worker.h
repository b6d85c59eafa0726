// Attention of queries over keys and values in place, in the blocks of a paged cache.
//
// A piece of work is a few queries of one sequence with all query heads of one key head, so that each key is read once
// for them. Keys are processed in tiles that begin at multiples of TILE, whatever the queries, and the softmax is
// updated tile by tile (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): a row's result
// depends neither on the chunk that it is computed in nor on other sequences.
//
// For each row the largest score m, the sum of weights t, and the weighted sum of values v are stored. The scores 1, 3
// of a first tile give m = 3, t = e^-2 + 1. A next tile with the score 4 makes m = 4, scales t and v by e^(3-4), and
// adds e^0 to t and the value itself to v; the answer is v / t, as if all scores had been there at once.
#pragma once
#include <algorithm>
#include <vector>

#include "attention.h"
#include "few_queries.h"
#include "product.h"
#include "strips.h"
#include "team.h"
#include "transpose.h"

namespace {

// Keys that are multiplied at once, and the number of query rows for which they are packed once.
constexpr int TILE = tiles::HERE ? 128 : 64, MOST_TILE_ROWS = tiles::HERE ? 1536 : 192;

// How a format is multiplied: in pairs directly, or as floats.
template <class T> struct Multiplied { using Mac = Floats; };
#if defined(HAS_BF16)
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

// Piece of work: some queries of one sequence with some of its key heads.
struct Piece {
    int64_t sequence, first;
    int num, first_head, num_heads;
};

// Slots of up to TILE neighbours of a sequence, and the heads that are read.
struct Tile {
    int64_t slot[TILE];
    int num = 0, first_head = 0, num_heads = 0;
};

// One thread's work on one layer of a step.
template <class T> class Worker {
    using Mac = typename Multiplied<T>::Mac;
    static constexpr int PER = Mac::PER_WORD;
    static constexpr bool BY_TILES = tiles::HERE && PER == 2;
    static constexpr int LINE_BYTES = 64, AHEAD = 1024;  // lines that are prefetched before few rows need them
    static constexpr float ONE_OVER_LN2 = 1.44269504f, HEADROOM = 8;
    static constexpr int KEYS_AT_ONCE = BY_TILES ? 2 * LANES : LANES;  // columns are padded to a multiple of it
    // Rows are padded by a cache line: their width is often a power of two, at which one column of all rows would share
    // a few places of a cache.
    static constexpr int MORE = BY_TILES ? LANES : 0, SCORES = TILE + MORE, WEIGHTS = BY_TILES ? TILE / PER + MORE : TILE;

  public:
    Worker(const Layer& layer, const Sequences& sequences, Rows q, Rows out)
        : l_(layer), s_(sequences), q_(q), out_(out), group_(layer.num_heads / layer.num_key_heads),
          key_words_(rounded_up((layer.key_width + PER - 1) / PER, LANES)),
          value_columns_(rounded_up(layer.value_width, KEYS_AT_ONCE)), query_row_(key_words_ + MORE),
          sum_row_(value_columns_ + MORE), is_quick_(BY_TILES && layer.softcap == 0 && layer.scaling > 0) {
        static thread_local Room room;
        const size_t rows = size_t(std::max(MOST_TILE_ROWS, group_));
        const size_t words[] = {rows * size_t(query_row_),  TILE * size_t(key_words_), TILE * size_t(value_columns_),
                                rows * SCORES,              rows * WEIGHTS,            rows * size_t(sum_row_),
                                2 * LANES * size_t(key_words_), rows,                  rows * LANES};
        uint32_t** places[] = {&queries_, &keys_, &values_, &scores_, &weights_, &sums_, &spare_, &most_, &total_};
        size_t all = 0;
        for (const size_t n : words) all += (n + 15) / 16 * 16;
        auto* at = (uint32_t*)room.take(4 * all);
        for (int i = 0; i < 9; i++) {
            *places[i] = at;
            at += (words[i] + 15) / 16 * 16;
        }
    }

    // Computes a piece; prefetches the beginning of this thread's next piece, if it is known.
    void attend(const Piece& p, const Piece* next) {
        const int64_t start = s_.start[p.sequence] + p.first, position = s_.position[p.sequence] + p.first;
        const int rows = p.num * group_;
        in_place_ = stay_in_place(rows);
        for (int h = 0; h < p.num_heads; h++) begin(start, rows, p.first_head + h, h);
        if (!knows_next_) {
            look_up(p, first_key(p)), begin_next();
            fetch(in_place_ ? AHEAD : num_lines(next_));
        }
        const int64_t end = position + p.num;
        for (int64_t at = first_key(p); at < end; at += TILE) {
            tile_ = next_;
            if (!in_next_) begin_next();  // none of it has been prefetched yet
            in_next_ = false;
            knows_next_ = at + TILE < end || next;
            if (at + TILE < end) look_up(p, at + TILE);
            else if (next) look_up(*next, first_key(*next));
            else next_.num = 0;
            if (in_place_) attend_few(p.num_heads, rows, position - at);
            else attend_many(p.num_heads, rows, position - at);
        }
        for (int h = 0; h < p.num_heads; h++) finish(start, rows, p.first_head + h, h);
    }

  private:
    // Returns whether keys are read in place for this many rows of a head.
    bool stay_in_place(int rows) const {
#if defined(HAS_BF16)
        if constexpr (PER == 2 && !BY_TILES)
            return rows <= MOST_ROWS_IN_PLACE && l_.key_width % (2 * LANES) == 0 && l_.value_width % COLUMNS_IN_PLACE == 0;
#endif
        return BY_TILES && rows <= LANES;
    }

    // Processes one tile of keys, head by head; `position` is the first row's, counted from the tile.
    void attend_many(int heads, int rows, int64_t position) {
        const int hidden = int(std::max<int64_t>(0, -position)) * group_;  // rows before this tile
        many_ = BY_TILES ? (rows - hidden) / 32 * 32 : 0;
        begin_next();
        const int packed = rounded_up(tile_.num, LANES) / LANES * (key_words_ / LANES) + (tile_.num + PER - 1) / PER;
        lines_a_turn_ = float(num_lines(next_)) / float((many_ ? many_ : packed) * heads);
        lines_due_ = 0;
        for (int h = 0; h < heads; h++) attend_tile(h, rows, hidden, position);
    }

    // Processes the rows of a head from `hidden` on.
    void attend_tile(int h, int rows, int hidden, int64_t position) {
        const int n = rounded_up(tile_.num, KEYS_AT_ONCE);
        pack_keys(h);
#if defined(__AMX_BF16__)
        if constexpr (BY_TILES) {
            pack_values(h, 0, n);
            if (many_) attend_strips(h * rows, hidden, position, n);
            hidden += many_;
            if (hidden == rows) return;
        }
#endif
        const int from = h * rows + hidden;
        auto *scores = (float*)scores_, *sums = (float*)sums_ + from * sum_row_;
        product<Mac>(rows - hidden, n / LANES, queries_ + from * query_row_, query_row_, keys_, TILE,
                     BY_TILES ? key_words_ : (l_.key_width + PER - 1) / PER, scores, SCORES, false);
        for (int row = hidden; row < rows; row++)
            weigh(scores + (row - hidden) * SCORES, weights_ + (row - hidden) * WEIGHTS, h * rows + row,
                  position + row / group_, n);
        if (!BY_TILES) pack_values(h, 0, tile_.num);
        product<Mac>(rows - hidden, value_columns_ / LANES, weights_, WEIGHTS, values_, value_columns_,
                     (BY_TILES ? n : tile_.num + PER - 1) / PER, sums, sum_row_, true);
    }

    // The same for few rows, a few keys of all heads at a time: computation and prefetching both follow memory, at a
    // small distance.
    void attend_few(int heads, int rows, int64_t position) {
        const int n = rounded_up(tile_.num, KEYS_AT_ONCE);
#if defined(HAS_BF16)
        for (int i = 0; i < n; i += KEYS_AT_ONCE)
            for (int h = 0; h < heads; h++) score_few(h, i, rows);
        for (int row = 0; row < heads * rows; row++)
            weigh((float*)scores_ + row * SCORES, weights_ + row * WEIGHTS, row, position + row % rows / group_, n);
        for (int i = 0; i < n; i += KEYS_AT_ONCE)
            for (int h = 0; h < heads; h++) add_few(h, i, rows);
#endif
    }

#if defined(__AMX_BF16__)
    // Computes all rows' scores with the keys i ... i + 2 LANES, in place if they are stored as tiles read them.
    void score_few(int h, int i, int rows) {
        alignas(64) float scores[2 * LANES * LANES];
        tiles::take_shape(LANES, LANES);
        const tiles::Keys left = keys_at(h, i, spare_);
        const tiles::Keys right = i + LANES < tile_.num ? keys_at(h, i + LANES, spare_ + LANES * key_words_) : left;
        tiles::score_in_place(left, right, queries_ + h * LANES * key_words_, key_words_, scores, [&] { fetch(2 * LANES); });
        for (int row = 0; row < rows; row++) {
            float* to = (float*)scores_ + (h * rows + row) * SCORES + i;
            store(to, tiles::column(scores + row));
            store(to + LANES, tiles::column(scores + LANES * LANES + row));  // no key: masked, but must be numbers
        }
    }

    // Adds the values i ... i + 2 LANES to the sums of a few rows.
    void add_few(int h, int i, int rows) {
        if (rows > MOST_ROWS_IN_PLACE || l_.value_width % COLUMNS_IN_PLACE) return add_packed(h, i, rows);
        for (int c = 0; c < l_.value_width; c += COLUMNS_IN_PLACE)
            for (int row = h * rows; row < (h + 1) * rows; row += 2) {
                const auto value_at = [&](int j) {  // no key: its weight is 0
                    return place(l_.values, tile_, std::min(i + j, tile_.num - 1), h, l_.value_width) + c;
                };
                const auto meanwhile = [&] { fetch(row == h * rows ? 2 * COLUMNS_IN_PLACE / (2 * LANES) : 0); };
                const auto* weights = weights_ + row * WEIGHTS + i / PER;
                auto* sums = (float*)sums_ + row * sum_row_ + c;
                if (row + 1 < (h + 1) * rows)
                    tiles::add_values_in_place<2>(value_at, weights, WEIGHTS, sums, sum_row_, meanwhile);
                else tiles::add_values_in_place<1>(value_at, weights, WEIGHTS, sums, sum_row_, meanwhile);
            }
    }

    // The same for more rows.
    void add_packed(int h, int i, int rows) {
        pack_values(h, i, 2 * LANES);
        product<Mac>(rows, value_columns_ / LANES, weights_ + h * rows * WEIGHTS + i / PER, WEIGHTS, values_,
                     value_columns_, LANES, (float*)sums_ + h * rows * sum_row_, sum_row_, true);
    }

    // Returns the tile's keys i ... i + LANES; those beyond its end are arbitrary. Copies them if they are not
    // adjacent.
    tiles::Keys keys_at(int h, int i, uint32_t* spare) {
        if (l_.block_size % LANES == 0 && l_.key_width % (2 * LANES) == 0)
            return {place(l_.keys, tile_, i, h, l_.key_width), long(sizeof(T)) * l_.num_key_heads * l_.key_width};
        for (int j = 0; j < LANES; j++)
            pack_row(place(l_.keys, tile_, std::min(i + j, tile_.num - 1), h, l_.key_width), l_.key_width,
                     spare + j * key_words_, key_words_);
        return {spare, 4 * key_words_};
    }

    // Processes rows from `hidden` on that form whole strips, of a head whose first row is `head`.
    void attend_strips(int head, int hidden, int64_t position, int n) {
        const int from = head + hidden;
        const tiles::Tiled tiled{queries_ + from * query_row_,
                                 keys_,
                                 values_,
                                 query_row_,
                                 TILE,
                                 value_columns_,
                                 key_words_,
                                 n,
                                 value_columns_,
                                 (float*)scores_,
                                 (float*)sums_ + from * sum_row_,
                                 weights_,
                                 SCORES,
                                 WEIGHTS,
                                 sum_row_};
        const auto one = [&](long row, float* scores, uint32_t* weights) {
            fetch_some();
            weigh(scores, weights, from + int(row), position + (hidden + int(row)) / group_, n);
        };
        tiles::Strips<decltype(one)>(tiled, one).attend(many_);
    }
#elif defined(HAS_BF16)
    // Computes all rows' scores with the keys i ... i + LANES.
    void score_few(int h, int i, int rows) {
        const uint32_t* keys[LANES];
        for (int j = 0; j < LANES; j++)  // no key: masked, but must be numbers
            keys[j] = (const uint32_t*)place(l_.keys, tile_, std::min(i + j, tile_.num - 1), h, l_.key_width);
        vectors::with_rows(rows, [&](auto num) {
            vectors::score_in_place<num.value>(keys, queries_ + h * rows * query_row_, query_row_, key_words_,
                                               (float*)scores_ + h * rows * SCORES + i, SCORES,
                                               [&] { fetch(4 * LANES * LANES / LINE_BYTES); });
        });
    }

    // Adds the values i ... i + LANES to the sums of a few rows.
    void add_few(int h, int i, int rows) {
        for (int c = 0; c < l_.value_width; c += COLUMNS_IN_PLACE) {
            const auto value_at = [&](int j) { return place(l_.values, tile_, i + j, h, l_.value_width) + c; };
            vectors::with_rows(rows, [&](auto num) {
                vectors::add_values_in_place<num.value>(
                    value_at, std::min(LANES, tile_.num - i), weights_ + h * rows * WEIGHTS + i / PER, WEIGHTS,
                    (float*)sums_ + h * rows * sum_row_ + c, sum_row_,
                    [&] { fetch(2 * COLUMNS_IN_PLACE * int(sizeof(T)) / LINE_BYTES); });
            });
        }
    }
#endif

    // Returns where head h of a tile is stored, for its token i.
    const T* place(const void* cache, const Tile& tile, int i, int h, int width) const {
        return (const T*)cache + (tile.slot[i] * l_.num_key_heads + tile.first_head + h) * width;
    }

    int64_t first_key(const Piece& p) const {
        const int64_t position = s_.position[p.sequence] + p.first;
        return l_.window ? std::max<int64_t>(0, position - l_.window + 1) / TILE * TILE : 0;
    }

    // Sets the next tile: that of a piece from position `at` on.
    void look_up(const Piece& p, int64_t at) {
        const auto* table = (const int64_t*)s_.table[p.sequence];
        next_.first_head = p.first_head, next_.num_heads = p.num_heads;
        next_.num = int(std::min<int64_t>(TILE, s_.position[p.sequence] + p.first + p.num - at));
        for (int i = 0; i < next_.num;) {
            const int64_t block = (at + i) / l_.block_size, offset = (at + i) % l_.block_size;
            const int n = int(std::min<int64_t>(next_.num - i, l_.block_size - offset));
            for (int j = 0; j < n; j++) next_.slot[i + j] = table[block] * l_.block_size + offset + j;
            i += n;
        }
    }

    void begin(int64_t start, int rows, int key_head, int h) {
        const bool turns = BY_TILES && in_place_;
        if (turns) std::memset(queries_ + h * LANES * key_words_, 0, 4 * size_t(LANES * key_words_));
        for (int row = 0; row < rows; row++) {
            const int head = key_head * group_ + row % group_, at = h * rows + row;
            const T* q = (const T*)q_.at + (start + row / group_) * q_.row + head * q_.head;
            pack_row(q, l_.key_width, turns ? spare_ : queries_ + at * query_row_, key_words_);
            for (int word = 0; turns && word < key_words_; word++)
                queries_[(h * key_words_ + word) * LANES + row] = spare_[word];
            const float unit = is_quick_ ? ONE_OVER_LN2 : 1.f;  // for powers of two, or of e
            ((float*)most_)[at] = l_.sinks ? l_.sinks[head] * unit : -INFINITY;
            store(total(at), zero());
            if (l_.sinks) *total(at) = 1;
        }
        std::memset((float*)sums_ + h * rows * sum_row_, 0, 4 * size_t(rows) * size_t(sum_row_));
    }

    // Returns the number of cache lines of a tile's keys and values.
    int num_lines(const Tile& t) const {
        return t.num * t.num_heads * (l_.key_width + l_.value_width) * int(sizeof(T)) / LINE_BYTES;
    }

    // Prefetches some more lines: of this tile's keys, then of its values, then of the next tile, in their order in
    // memory. Inlined, because compilers drop calls of a function that does nothing else.
    INLINE void fetch(int lines) {
        constexpr auto FETCHED_TO = BY_TILES ? SECOND : FIRST;  // a tile is larger than the first cache
        while (lines > 0 && (left_ || next_row())) {
            const int n = std::min(lines, left_);
            for (int i = 0; i < n; i++) prefetch<FETCHED_TO>(fetched_ + i * LINE_BYTES);
            fetched_ += n * LINE_BYTES, left_ -= n, lines -= n;
        }
    }

    // Prefetches some more of the next tile, so that memory and arithmetic are always busy.
    INLINE void fetch_some() {
        lines_due_ += lines_a_turn_;
        fetch(int(lines_due_));
        lines_due_ -= float(int(lines_due_));
    }

    // Begins to prefetch the next tile.
    void begin_next() { in_next_ = true, row_ = left_ = 0; }

    // Finds the heads of the token that are prefetched next; returns whether there are any.
    bool next_row() {
        if (!in_next_ && row_ == 2 * tile_.num) begin_next();
        const Tile& t = in_next_ ? next_ : tile_;
        if (row_ == 2 * t.num) return false;
        const bool is_key = row_ < t.num;
        const int width = is_key ? l_.key_width : l_.value_width;
        fetched_ = (const char*)place(is_key ? l_.keys : l_.values, t, is_key ? row_ : row_ - t.num, 0, width);
        left_ = (t.num_heads * width * int(sizeof(T)) + LINE_BYTES - 1) / LINE_BYTES;
        row_++;
        return true;
    }

    // Packs the tile's keys, word by word; prefetches this head's share of the next data.
    void pack_keys(int h) {
        const bool as_it_is = PER == 2 && l_.key_width % (2 * LANES) == 0;
        for (int i = 0; i < tile_.num; i += LANES) {
            const uint32_t* rows[LANES];
            for (int j = 0; j < LANES; j++) {
                if (i + j >= tile_.num) {
                    rows[j] = rows[j - 1];  // masked, but must be a number
                    continue;
                }
                const T* key = place(l_.keys, tile_, i + j, h, l_.key_width);
                rows[j] = (const uint32_t*)key;
                if (!as_it_is) {
                    pack_row(key, l_.key_width, spare_ + j * key_words_, key_words_);
                    rows[j] = spare_ + j * key_words_;
                }
            }
            for (int word = 0; word < key_words_; word += LANES) {
                if (!many_) fetch_some();
                transpose(rows, word, keys_ + word * TILE + i, TILE);
            }
        }
    }

    // Packs `num` of the tile's values from `first` on, two in a word if words are multiplied in pairs: neighbours, or
    // for tiles those LANES apart, the order in which two vectors of weights become such words fastest.
    void pack_values(int h, int first, int num) {
        constexpr int APART = BY_TILES ? LANES : 1;
        for (int word = 0; word < (num + PER - 1) / PER; word++) {
            if (in_place_) fetch(value_columns_ / LANES);
            else if (!many_) fetch_some();
            const int i = first + word / APART * (PER * APART) + word % APART;
            uint32_t* to = values_ + word * value_columns_;
            const auto value = [&](int n) { return place(l_.values, tile_, n, h, l_.value_width); };
            if constexpr (PER == 1) {
                pack_row(value(i), l_.value_width, to, value_columns_);
            } else if (i + APART < tile_.num) {
                pack_pairs((const uint16_t*)value(i), (const uint16_t*)value(i + APART), to);
            } else {  // arbitrary values, times a weight of 0
                for (int e = 0; e < value_columns_; e++)
                    to[e] = i < tile_.num && e < l_.value_width ? ((const uint16_t*)value(i))[e] : 0;
            }
        }
    }

    void pack_pairs(const uint16_t* a, const uint16_t* b, uint32_t* to) const {
        int e = 0;
        for (; e + 2 * LANES <= l_.value_width; e += 2 * LANES) interleave(a + e, b + e, to + e);
        for (; e < l_.value_width; e++) to[e] = a[e] | uint32_t(b[e]) << 16;
    }

    // Computes weights from a row's scores; `last` is the column of its own position, n the columns. Its sums are row
    // `own`.
    INLINE void weigh(float* scores, uint32_t* weights, int own, int64_t last, int n) {
        const int end = int(std::min<int64_t>(last + 1, n));
        const int first = int(l_.window ? std::min<int64_t>(std::max<int64_t>(0, last + 1 - l_.window), TILE) : 0);
        if (end <= first) return std::memset(weights, 0, 4 * size_t(TILE / PER)), void();
#if defined(__AMX_BF16__)
        if constexpr (BY_TILES)
            if (is_quick_)
                return first == 0 && end == TILE ? weigh_quickly<true>(scores, weights, first, end, n, own)
                                                 : weigh_quickly<false>(scores, weights, first, end, n, own);
#endif
        vf highest = set1(-INFINITY);
        for (int i = 0; i < n; i += LANES) {
            vf score = load(scores + i) * set1(l_.scaling);
            if (l_.softcap != 0) score = tanh(score * set1(1 / l_.softcap)) * set1(l_.softcap);
            if (first > i || end < i + LANES) score = only(score, first - i, end - i);
            store(scores + i, score);
            highest = max(score, highest);
        }
        float& most = ((float*)most_)[own];
        const float now = std::max(most, largest(highest));
        if (most != now) keep(own, std::exp(most - now));
        most = now;
        vf sums = load(total(own));
        for (int i = 0; i < n; i += LANES) {
            const vf weight = exp<PER == 2 ? 4 : 7>(load(scores + i) - set1(now));  // a bf16 has 8 bits
            sums = sums + weight;
            if constexpr (BY_TILES) store(scores + i, weight);
            else store_weight(weights, i, weight);
        }
        store(total(own), sums);
        if constexpr (BY_TILES)
            for (int i = 0; i < n; i += 2 * LANES)
                store_words(weights + i / 2, rounded_pair(load(scores + i), load(scores + i + LANES)));
    }

    // Scales a part of the sums of row `own`.
    void keep(int own, float part) {
        float* out = (float*)sums_ + own * sum_row_;
        for (int e = 0; e < value_columns_; e += LANES) store(out + e, load(out + e) * set1(part));
        store(total(own), load(total(own)) * set1(part));
    }

#if defined(__AMX_BF16__)
    // The same if scores are only scaled: in powers of two, all in registers. Sums are scaled down only for a score
    // that would have a weight above 2^HEADROOM. IS_WHOLE: the whole tile is visible.
    template <bool IS_WHOLE>
    INLINE void weigh_quickly(const float* scores, uint32_t* weights, int first, int end, int n, int own) {
        constexpr int MOST = TILE / LANES;
        const float scale = l_.scaling * ONE_OVER_LN2;
        float& most = ((float*)most_)[own];
        vf score[MOST], highest = set1(-INFINITY);
        for (int i = 0; i < MOST; i++) {
            if (!IS_WHOLE && i * LANES >= n) break;
            score[i] = load(scores + i * LANES);
            if (!IS_WHOLE && (first > i * LANES || end < (i + 1) * LANES))
                score[i] = only(score[i], first - i * LANES, end - i * LANES);
            highest = max(score[i], highest);
        }
        if (_mm512_cmp_ps_mask(highest * set1(scale), set1(most + HEADROOM), _CMP_GT_OQ)) {
            const float now = largest(highest) * scale;
            keep(own, std::exp2(most - now));
            most = now;
        }
        vf sums = load(total(own));
        for (int i = 0; i < MOST; i += 2) {
            if (!IS_WHOLE && i * LANES >= n) break;
            const vf a = exp2_of_8_bits(fma(score[i], set1(scale), set1(-most)));
            const vf b = exp2_of_8_bits(fma(score[i + 1], set1(scale), set1(-most)));
            sums = sums + a + b;
            store_words(weights + i * LANES / 2, rounded_pair(a, b));
        }
        store(total(own), sums);
    }
#endif

    static INLINE void store_weight(uint32_t* weights, int i, vf weight) {
        if constexpr (PER == 2) store((bf16*)weights + i, weight);
        else store((float*)weights + i, weight);
    }

    // Returns the sum of the weights of row `own`, in parts.
    INLINE float* total(int own) const { return (float*)total_ + own * LANES; }

    void finish(int64_t start, int rows, int key_head, int h) {
        for (int row = 0; row < rows; row++) {
            const int head = key_head * group_ + row % group_, at = h * rows + row;
            T* out = (T*)out_.at + (start + row / group_) * out_.row + head * out_.head;
            const float* sums = (const float*)sums_ + at * sum_row_;
            const vf part = set1(1 / sum(load(total(at))));
            for (int e = 0; e < l_.value_width; e += LANES)
                store_part(out + e, load(sums + e) * part, l_.value_width - e);
        }
    }

    const Layer& l_;
    const Sequences& s_;
    const Rows q_, out_;
    const int group_, key_words_, value_columns_, query_row_, sum_row_;
    const bool is_quick_;
    Tile tile_, next_;
    bool knows_next_ = false, in_place_ = false;  // keys of few rows are not packed
    int many_ = 0;  // rows that are computed in strips
    // What is prefetched next: a row of this tile or of the next, keys before values, and its remaining lines.
    bool in_next_ = false;
    int row_ = 0, left_ = 0;
    const char* fetched_ = nullptr;
    float lines_due_ = 0, lines_a_turn_ = 0;
    uint32_t *queries_, *keys_, *values_, *scores_, *weights_, *sums_, *spare_, *most_, *total_;
};

}  // namespace
