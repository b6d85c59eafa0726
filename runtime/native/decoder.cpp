// A whole step of a decoder in one call: every thread walks through the same parts and takes pieces of each
// (team.h). A piece is a row, a block of columns, or some queries' attention.
#include "decoder.h"

#include "rows.h"
#include "pieces.h"

namespace {

constexpr int64_t MOST_ROWS_AT_ONCE = 512;

// Of a layer's rows, those that are multiplied by one block of columns after the other, as equal parts as can be: their
// inputs stay in a core's own cache. Tiles are quick enough to wait for the next cache.
inline int64_t rows_at_once(const Linear& l, int64_t rows) {
    constexpr int64_t INPUT_BYTES = 768 << 10, STEP = 32;
    if (!tiles::HERE || !l.block) return MOST_ROWS_AT_ONCE;
    const int64_t most = std::clamp(INPUT_BYTES / (2 * l.num_in) / STEP * STEP, STEP, MOST_ROWS_AT_ONCE);
    const int64_t parts = (rows + most - 1) / most;
    return ((rows + parts - 1) / parts + STEP - 1) / STEP * STEP;
}

// Buffers of one step, kept for the next.
template <class T> struct Buffers {
    T *hidden, *normed, *heads, *attended, *more, *mlp;
    Buffers(const Decoder& d, int64_t rows, int64_t head_columns, int64_t attended_columns) {
        static thread_local Room room;
        const int64_t columns[] = {d.width, d.width, head_columns, attended_columns, d.width, d.mlp_width};
        T** places[] = {&hidden, &normed, &heads, &attended, &more, &mlp};
        size_t all = 0, at[6];
        for (int i = 0; i < 6; i++) {
            at[i] = all;
            all += (sizeof(T) * size_t(rows * columns[i]) + 63) / 64 * 64;
        }
        char* room_at = room.take(all);
        for (int i = 0; i < 6; i++) *places[i] = (T*)(room_at + at[i]);
    }
};

inline float* block_room(int i) {
    static thread_local Room rooms[2];
    return (float*)rooms[i].take(sizeof(float) * MOST_ROWS_AT_ONCE * BLOCK);
}

// Blocks of columns of some layers of one input: f(layer, first column, n, first row, rows).
template <class F> void each_block(Walker& walker, std::initializer_list<const Linear*> layers, int64_t rows, F f) {
    int64_t blocks = 0;
    for (const Linear* l : layers) blocks += num_blocks(*l);
    const int64_t most_rows = rows_at_once(**layers.begin(), rows), panels = (rows + most_rows - 1) / most_rows;
    // Some neighbours at once, since what lies behind a block is fetched while it is multiplied.
    const int64_t at_once = std::clamp<int64_t>(panels * blocks / 16, 1, 8);
    walker.each(panels * blocks, at_once, [&](int64_t piece, int64_t end) {
        for (; piece < end; piece++) {
            const int64_t row = piece / blocks * most_rows;
            int64_t block = piece % blocks, layer = 0;
            for (; block >= num_blocks(*layers.begin()[layer]); layer++) block -= num_blocks(*layers.begin()[layer]);
            const Linear& l = *layers.begin()[layer];
            const int n = int(std::min<int64_t>(BLOCK, l.num_out - block * BLOCK));
            f(layer, block * BLOCK, n, row, std::min(most_rows, rows - row));
        }
    });
}

// x W^T + b of some layers into `out`, whose rows hold the layers' columns one after the other.
template <class T>
void linear(Walker& walker, std::initializer_list<const Linear*> layers, const T* x, int64_t rows, T* out,
            int64_t out_width) {
    each_block(walker, layers, rows, [&](int64_t layer, int64_t first, int n, int64_t row, int64_t num_rows) {
        const Linear& l = *layers.begin()[layer];
        int64_t column = first;
        for (int64_t i = 0; i < layer; i++) column += layers.begin()[i]->num_out;
        float* sums = block_room(0);
        linear_block(l, first, n, x + row * l.num_in, num_rows, sums);
        for (int64_t r = 0; r < num_rows; r++)
            for (int c = 0; c < n; c += LANES)
                store_part(out + (row + r) * out_width + column + c, load(sums + r * BLOCK + c), n - c);
    });
}

template <class F> void each_row(Walker& walker, int64_t rows, F f) {
    walker.each(rows, rows < 32 ? 1 : 8, [&](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; r++) f(r);
    });
}

template <class T> void decode(const Decoder& d, const Step& step, int num_threads) {
    const Sequences& s = *step.sequences;
    const int64_t rows = s.start[s.num_sequences], width = d.width;
    const Layer& a = d.layers[0].attention;
    const int64_t q_columns = a.num_heads * a.key_width, k_columns = a.num_key_heads * a.key_width;
    const int64_t head_columns = q_columns + k_columns + a.num_key_heads * a.value_width;
    const int64_t attended_columns = a.num_heads * a.value_width;
    const Buffers<T> b(d, rows, head_columns, attended_columns);
    const Pieces pieces(s, a, num_threads);
    walk(num_threads, int(4 + 9 * (step.end - step.first)), [&](Walker& walker) {
        each_row(walker, rows, [&](int64_t r) {
            const T* from = step.token ? (const T*)d.embedding + step.token[r] * width : (T*)step.hidden + r * width;
            std::memcpy(b.hidden + r * width, from, sizeof(T) * size_t(width));
        });
        for (int64_t i = step.first; i < step.end; i++) {
            const DecoderLayer& layer = d.layers[i];
            const auto norm_rows = [&](const Norm& norm, bool adds) {
                each_row(walker, rows, [&](int64_t r) {
                    add_and_norm<T>(b.hidden + r * width, adds ? b.more + r * width : nullptr, norm,
                                    b.normed + r * width, width);
                });
            };
            norm_rows(layer.before_attention, i > step.first);
            linear(walker, {&layer.q, &layer.k, &layer.v}, b.normed, rows, b.heads, head_columns);
            each_row(walker, rows, [&](int64_t r) {
                T* q = b.heads + r * head_columns;
                keep_heads(d, layer, q, q + q_columns, q + q_columns + k_columns, s.slot[r], step.position[r]);
            });
            Worker<T> worker(layer.attention, s, {b.heads, head_columns, a.key_width},
                             {b.attended, attended_columns, a.value_width});
            pieces.attend(walker, worker);
            linear(walker, {&layer.o}, b.attended, rows, b.more, width);
            norm_rows(layer.before_mlp, true);
            each_block(walker, {&layer.gate}, rows, [&](int64_t, int64_t first, int n, int64_t row, int64_t num_rows) {
                float *gate = block_room(0), *up = block_room(1);
                linear_block(layer.gate, first, n, b.normed + row * width, num_rows, gate);
                linear_block(layer.up, first, n, b.normed + row * width, num_rows, up);
                gate_block(gate, up, num_rows, n, b.mlp + row * d.mlp_width + first, d.mlp_width, d.activation);
            });
            linear(walker, {&layer.down}, b.mlp, rows, b.more, width);
        }
        const T* more = step.end > step.first ? b.more : nullptr;
        if (step.hidden)
            each_row(walker, rows, [&](int64_t r) {
                T* row = b.hidden + r * width;
                add_and_norm<T>(row, more ? more + r * width : nullptr, d.last_norm, nullptr, width);
                std::memcpy((T*)step.hidden + r * width, row, sizeof(T) * size_t(width));
            });
        if (!step.num_sampled) return;
        if (step.hidden) more = nullptr;  // added already
        each_row(walker, step.num_sampled, [&](int64_t r) {
            const int64_t from = step.sampled[r] * width;
            add_and_norm<T>(b.hidden + from, more ? more + from : nullptr, d.last_norm, b.normed + r * width, width);
        });
        linear(walker, {&d.head}, b.normed, step.num_sampled, (T*)step.logits, d.vocab_size);
    });
}

}  // namespace

// One step; returns when it is done.
extern "C" void sundog_decode(const Decoder* d, const Step* step, int32_t num_threads) {
    if (d->format == FLOAT32) decode<float>(*d, *step, num_threads);
    else decode<bf16>(*d, *step, num_threads);
}

// One linear layer of bf16 rows [T][num_in] alone, to [T][num_out].
extern "C" void sundog_linear(const Linear* l, const void* x, int64_t rows, void* out, int32_t num_threads) {
    walk(num_threads, 1, [&](Walker& walker) {
        linear<bf16>(walker, {l}, (const bf16*)x, rows, (bf16*)out, l->num_out);
    });
}
