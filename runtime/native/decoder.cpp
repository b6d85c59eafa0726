// A whole step of a decoder in one call: every thread walks through the same parts and takes pieces of each
// (team.h). A piece is a row, a block of columns, or some queries' attention.
#include "decoder.h"

#include "rows.h"
#include "pieces.h"

namespace {

// Of a layer's rows, those that are multiplied by one block of columns after the other, as equal parts as can be: their
// inputs stay in a core's own cache. Tiles are quick enough to wait for the next cache.
inline int64_t rows_at_once(const Linear& l, int64_t rows) {
    constexpr int64_t INPUT_BYTES = 1 << 20, STEP = 32;
    if (!tiles::HERE || !l.block) return MOST_ROWS_AT_ONCE;
    const int64_t most = std::clamp(INPUT_BYTES / (2 * l.num_in) / STEP * STEP, STEP, MOST_ROWS_AT_ONCE);
    const int64_t parts = (rows + most - 1) / most;
    return ((rows + parts - 1) / parts + STEP - 1) / STEP * STEP;
}

// Buffers of one step, kept for the next. Rows lie an odd number of cache lines apart: where that is a power of two,
// one column's rows would share a few places of a cache.
template <class T> struct Buffers {
    Matrix<T> hidden, normed, heads, attended, more, mlp;
    Buffers(const Decoder& d, int64_t rows, int64_t head_columns, int64_t attended_columns) {
        static thread_local Room room;
        const int64_t columns[] = {d.width, d.width, head_columns, attended_columns, d.width, d.mlp_width};
        Matrix<T>* places[] = {&hidden, &normed, &heads, &attended, &more, &mlp};
        constexpr int64_t LINE = 64 / sizeof(T);
        size_t all = 0, at[6];
        for (int i = 0; i < 6; i++) {
            at[i] = all;
            places[i]->row = ((columns[i] + LINE - 1) / LINE | 1) * LINE;
            all += sizeof(T) * size_t(rows * places[i]->row);
        }
        char* room_at = room.take(all);
        for (int i = 0; i < 6; i++) places[i]->at = (T*)(room_at + at[i]);
    }
};

using Linears = std::initializer_list<const Linear*>;

inline int64_t num_blocks(Linears layers) {
    int64_t blocks = 0;
    for (const Linear* l : layers) blocks += num_blocks(*l);
    return blocks;
}

// One of the blocks of some layers: which layer, and which of its blocks.
struct Place {
    int64_t layer, block;
    Place(Linears layers, int64_t n) : layer(0), block(n) {
        for (; block >= num_blocks(*layers.begin()[layer]); layer++) block -= num_blocks(*layers.begin()[layer]);
    }
};

inline const void* place_of(Linears layers, int64_t n) {
    const Place at(layers, n);
    return block_at(*layers.begin()[at.layer], at.block);
}

template <class F> void each_row(Walker& walker, int64_t rows, F f) {
    walker.each(rows, rows < 32 ? 1 : 8, [&](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; r++) f(r);
    });
}

// Where rows of `num_in` inputs are made whole numbers, kept for the next call.
inline WholeRows room_for_whole(int64_t rows, int64_t num_in) {
    static thread_local Room rooms[2];
    WholeRows whole{nullptr, nullptr, num_in};
    whole.at = rooms[0].take(size_t(rows * whole.row()));
    whole.unit = (float*)rooms[1].take(sizeof(float) * size_t(rows * whole.groups()));
    return whole;
}

inline bool are_whole(Linears layers) {
    return std::any_of(layers.begin(), layers.end(), [](const Linear* l) { return l->bits; });
}

// The rows as whole numbers, where a layer's weights are some.
template <class T>
WholeRows as_whole(Walker& walker, Linears layers, const Matrix<const T>& x, int64_t rows, WholeRows room) {
    if constexpr (std::is_same_v<T, bf16>)
        if (are_whole(layers)) {
            room.num_in = (*layers.begin())->num_in;
            room.in_bytes = tiles::HERE && rows > MOST_ROWS_WITHOUT_TILES;
            each_row(walker, rows, [&](int64_t r) { room.take(r, x[r]); });
        }
    return room;
}

// Blocks of columns of some layers of one input: f(layer, first column, n, first row, rows, what is read next). Behind
// the last block this thread's own first one of the layers `then` is read.
template <class F> void each_block(Walker& walker, Linears layers, Linears then, int64_t rows, F f) {
    const int64_t blocks = num_blocks(layers);
    const int64_t most_rows = rows_at_once(**layers.begin(), rows), panels = (rows + most_rows - 1) / most_rows;
    const auto one = [&](int64_t piece, const void* next) {
        const int64_t row = piece / blocks * most_rows;
        const Place at(layers, piece % blocks);
        const int n = int(std::min<int64_t>(BLOCK, layers.begin()[at.layer]->num_out - at.block * BLOCK));
        f(at.layer, at.block * BLOCK, n, row, std::min(most_rows, rows - row), next);
    };
    if (panels == 1) {
        const void* last = then.size() ? place_of(then, walker.first_own(num_blocks(then))) : nullptr;
        return walker.each_own(blocks, [&](int64_t piece, int64_t end) {
            one(piece, piece + 1 < end ? place_of(layers, piece + 1) : last);
        });
    }
    // Some neighbours at once, since what lies behind a block is fetched while it is multiplied.
    const int64_t at_once = std::clamp<int64_t>(panels * blocks / 16, 1, 8);
    walker.each(panels * blocks, at_once, [&](int64_t piece, int64_t end) {
        for (; piece < end; piece++) one(piece, nullptr);
    });
}

// x W^T + b of some layers into `out`, whose rows hold the layers' columns one after the other.
template <class T>
void linear(Walker& walker, Linears layers, Linears then, const Matrix<const T>& x, const WholeRows& room, int64_t rows,
            const Matrix<T>& out) {
    const WholeRows whole = as_whole<T>(walker, layers, x, rows, room);
    each_block(walker, layers, then, rows,
               [&](int64_t layer, int64_t first, int n, int64_t row, int64_t num_rows, const void* next) {
                   const Linear& l = *layers.begin()[layer];
                   int64_t column = first;
                   for (int64_t i = 0; i < layer; i++) column += layers.begin()[i]->num_out;
                   make_columns<T>({l, l, first, n, next, whole.from(row)}, {x[row], x.row}, num_rows, {out[row] + column, out.row},
                                   [](vf sums, vf) { return sums; });
               });
}

template <class T> Matrix<const T> read(const Matrix<T>& m) { return {m.at, m.row}; }

template <class T> void decode(const Decoder& d, const Step& step, int num_threads) {
    const Sequences& s = *step.sequences;
    const int64_t rows = s.start[s.num_sequences], width = d.width;
    const Layer& a = d.layers[0].attention;
    const int64_t q_columns = a.num_heads * a.key_width, k_columns = a.num_key_heads * a.key_width;
    const int64_t head_columns = q_columns + k_columns + a.num_key_heads * a.value_width;
    const int64_t attended_columns = a.num_heads * a.value_width;
    const Buffers<T> b(d, rows, head_columns, attended_columns);
    const Pieces pieces(s, a, num_threads);
    const DecoderLayer& l = d.layers[0];  // all of them are alike
    const bool has_whole = are_whole({&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &d.head});
    const WholeRows room = room_for_whole(has_whole ? rows : 0, std::max({width, attended_columns, d.mlp_width}));
    walk(num_threads, int(6 + 13 * (step.end - step.first)), [&](Walker& walker) {
        each_row(walker, rows, [&](int64_t r) {
            if (step.token) scale_row((const T*)d.embedding + step.token[r] * width, d.embedding_scale, b.hidden[r], width);
            else std::memcpy(b.hidden[r], (T*)step.hidden + r * width, sizeof(T) * size_t(width));
        });
        // What is added to the state, and what is made of the state then: rows of `more`, behind a norm of their own.
        const auto add = [&](int64_t r, const Norm& after) { add_row(b.hidden[r], b.more[r], after, d.residual_scale); };
        const auto add_and_norm = [&](const Norm* after, const Norm& before) {
            each_row(walker, rows, [&](int64_t r) {
                if (after) add(r, *after);
                norm_row(b.hidden[r], before, b.normed[r]);
            });
        };
        for (int64_t i = step.first; i < step.end; i++) {
            const DecoderLayer& layer = d.layers[i];
            add_and_norm(i > step.first ? &d.layers[i - 1].after_mlp : nullptr, layer.before_attention);
            linear(walker, {&layer.q, &layer.k, &layer.v}, {&layer.o}, read(b.normed), room, rows, b.heads);
            each_row(walker, rows, [&](int64_t r) {
                T* q = b.heads[r];
                keep_heads(d, layer, q, q + q_columns, q + q_columns + k_columns, s.slot[r], step.position[r]);
            });
            Worker<T> worker(layer.attention, s, {b.heads.at, b.heads.row, a.key_width},
                             {b.attended.at, b.attended.row, a.value_width});
            pieces.attend(walker, worker);
            linear(walker, {&layer.o}, {&layer.gate}, read(b.attended), room, rows, b.more);
            add_and_norm(&layer.after_attention, layer.before_mlp);
            const WholeRows whole = as_whole<T>(walker, {&layer.gate}, read(b.normed), rows, room);
            each_block(walker, {&layer.gate}, {&layer.down}, rows,
                       [&](int64_t, int64_t first, int n, int64_t row, int64_t num_rows, const void* next) {
                           make_columns<T>({layer.gate, layer.up, first, n, next, whole.from(row)}, {b.normed[row], b.normed.row},
                                           num_rows, {b.mlp[row] + first, b.mlp.row}, [&](vf gate, vf up) {
                                               return activated<T>(kept<T>(gate), d.activation) * kept<T>(up);
                                           });
                       });
            const bool is_last = i + 1 == step.end;
            const DecoderLayer& after = is_last ? layer : d.layers[i + 1];
            linear(walker, {&layer.down}, {is_last ? &d.head : &after.q}, read(b.mlp), room, rows, b.more);
        }
        bool adds = step.end > step.first;
        const Norm& after_last = d.layers[step.end ? step.end - 1 : 0].after_mlp;
        if (step.hidden)
            each_row(walker, rows, [&](int64_t r) {
                if (adds) add(r, after_last);
                std::memcpy((T*)step.hidden + r * width, b.hidden[r], sizeof(T) * size_t(width));
            });
        if (!step.num_sampled) return;
        if (step.hidden) adds = false;  // done already
        each_row(walker, step.num_sampled, [&](int64_t r) {
            if (adds) add(step.sampled[r], after_last);
            norm_row(b.hidden[step.sampled[r]], d.last_norm, b.normed[r]);
        });
        const Matrix<T> logits{(T*)step.logits, d.vocab_size};
        linear(walker, {&d.head}, {}, read(b.normed), room, step.num_sampled, logits);
        if (d.logit_scale != 1 || d.logit_softcap != 0)
            each_row(walker, step.num_sampled, [&](int64_t r) { finish_logits(logits[r], d); });
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
    const WholeRows room = room_for_whole(rows, l->num_in);
    walk(num_threads, 2, [&](Walker& walker) {
        linear<bf16>(walker, {l}, {}, {(const bf16*)x, l->num_in}, room, rows, {(bf16*)out, l->num_out});
    });
}
