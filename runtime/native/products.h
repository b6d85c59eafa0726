// Linear layers of a step, whose blocks of columns are shared among all threads (team.h).
#pragma once
#include "linear.h"

namespace {

using Linears = std::initializer_list<const Linear*>;

// Returns whether rows are converted to floats for one of the layers.
template <class T> bool needs_floats(Linears layers) {
    return BY_FLOATS<T> && std::any_of(layers.begin(), layers.end(), [](const Linear* l) { return l->block && !l->bits; });
}

// Rows that are multiplied by one block of columns after another, in parts as equal as possible: their inputs stay in a
// core's own cache. Tiles are fast enough to wait for the next cache.
template <class T> int64_t rows_at_once(const Linear& l, int64_t rows) {
    constexpr int64_t INPUT_BYTES = 1 << 20, STEP = 32;
    if (!l.block || !rows) return MOST_ROWS_AT_ONCE;
    if (needs_floats<T>({&l})) {
        const int64_t parts = (rows + MOST_FLOAT_ROWS - 1) / MOST_FLOAT_ROWS;
        return (rows + parts - 1) / parts;
    }
    if (!tiles::HERE) return MOST_ROWS_AT_ONCE;
    const int64_t most = std::clamp(INPUT_BYTES / (2 * l.num_in) / STEP * STEP, STEP, MOST_ROWS_AT_ONCE);
    const int64_t parts = (rows + most - 1) / most;
    return ((rows + parts - 1) / parts + STEP - 1) / STEP * STEP;
}

inline int64_t num_blocks(Linears layers) {
    int64_t blocks = 0;
    for (const Linear* l : layers) blocks += num_blocks(*l);
    return blocks;
}

// Block of columns: its layer, and its number in that layer.
struct Place {
    int64_t layer, block;
    Place(Linears layers, int64_t n) : layer(0), block(n) {
        for (; block >= num_blocks(*layers.begin()[layer]); layer++) block -= num_blocks(*layers.begin()[layer]);
    }
};

template <class T> const void* place_of(Linears layers, int64_t n) {
    const Place at(layers, n);
    return block_at<T>(*layers.begin()[at.layer], at.block);
}

template <class F> void each_row(Walker& walker, int64_t rows, F f) {
    walker.each(rows, rows < 32 ? 1 : 8, [&](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; r++) f(r);
    });
}

// Buffer for rows of `num_in` inputs as integers, reused by the next call.
inline WholeRows room_for_whole(int64_t rows, int64_t num_in) {
    static thread_local Room rooms[2];
    WholeRows whole{nullptr, nullptr, num_in, true};
    whole.at = (int8_t*)rooms[0].take(size_t(rows * whole.row()));
    whole.unit = (Unit*)rooms[1].take(sizeof(Unit) * size_t(rows * whole.units()));
    return whole;
}

// Returns the rows as integers, if a layer's weights are integers. All of these have groups of GROUP, or none has.
template <class T>
WholeRows as_whole(Walker& walker, Linears layers, const Matrix<const T>& x, int64_t rows, WholeRows room) {
    const auto* of = std::find_if(layers.begin(), layers.end(), [](const Linear* l) { return l->bits; });
    if (of != layers.end()) {
        room.num_in = (*of)->num_in;
        room.is_fine = (*of)->group != GROUP;
        each_row(walker, rows, [&](int64_t r) { room.take(r, x[r]); });
    }
    return room;
}

// Rows of the common input of some layers, as operands of one thread's products.
template <class T> class Operands {
  public:
    Operands(Linears layers, const Matrix<const T>& x, const WholeRows& whole)
        : x_(x), whole_(whole), num_in_((*layers.begin())->num_in), needs_floats_(needs_floats<T>(layers)) {}

    // Returns some rows, converted to floats unless the last call had the same rows.
    Operand<T> from(int64_t first, int64_t rows) {
        Operand<T> found{{x_[first], x_.row}, {}, whole_.from(first)};
        if (!needs_floats_) return found;
        if constexpr (std::is_same_v<T, float>) {
            found.floats = found.x;
        } else {
            found.floats = {room(rows), row()};
            for (int64_t r = 0; r < (first == first_ ? 0 : rows); r++)
                for (int64_t i = 0; i < num_in_; i += LANES)
                    store(room(rows) + r * row() + i, load_part(found.x[r] + i, int(std::min<int64_t>(LANES, num_in_ - i))));
            first_ = first;
        }
        return found;
    }

  private:
    int64_t row() const { return (num_in_ / 16 | 1) * 16 + 16; }  // an odd number of cache lines
    float* room(int64_t rows) const {
        static thread_local Room room;
        return (float*)room.take(sizeof(float) * size_t(rows * row()));
    }

    const Matrix<const T> x_;
    const WholeRows whole_;
    const int64_t num_in_;
    const bool needs_floats_;
    int64_t first_ = -1;
};

// Calls f(layer, first column, n, first row, rows, operand, what is read next) for blocks of columns of layers with one
// input. After the last block, this thread's first block of the layers `then` is read.
template <class T, class F>
void each_block(Walker& walker, Linears layers, Linears then, const Matrix<const T>& x, const WholeRows& whole, int64_t rows, F f) {
    const int64_t blocks = num_blocks(layers);
    const int64_t most_rows = rows_at_once<T>(**layers.begin(), rows), panels = (rows + most_rows - 1) / most_rows;
    Operands<T> operands(layers, x, whole);
    const auto one = [&](int64_t piece, const void* next) {
        const int64_t row = piece / blocks * most_rows;
        const Place at(layers, piece % blocks);
        const int n = int(std::min<int64_t>(BLOCK, layers.begin()[at.layer]->num_out - at.block * BLOCK));
        const int64_t num_rows = std::min(most_rows, rows - row);
        f(at.layer, at.block * BLOCK, n, row, num_rows, operands.from(row, num_rows), next);
    };
    if (panels == 1) {
        const void* last = then.size() ? place_of<T>(then, walker.first_own(num_blocks(then))) : nullptr;
        return walker.each_own(blocks, [&](int64_t piece, int64_t end) {
            one(piece, piece + 1 < end ? place_of<T>(layers, piece + 1) : last);
        });
    }
    // Several neighbours at once, because the next block is prefetched while one is multiplied.
    const int64_t at_once = std::clamp<int64_t>(panels * blocks / 16, 1, 8);
    walker.each(panels * blocks, at_once, [&](int64_t piece, int64_t end) {
        for (; piece < end; piece++) one(piece, nullptr);
    });
}

// Computes x W^T + b of some layers into `out`, whose rows contain the layers' columns one after another.
template <class T>
void linear(Walker& walker, Linears layers, Linears then, const Matrix<const T>& x, const WholeRows& room, int64_t rows,
            const Matrix<T>& out) {
    const WholeRows whole = as_whole<T>(walker, layers, x, rows, room);
    each_block(walker, layers, then, x, whole, rows,
               [&](int64_t layer, int64_t first, int n, int64_t row, int64_t num_rows, const Operand<T>& in, const void* next) {
                   const Linear& l = *layers.begin()[layer];
                   int64_t column = first;
                   for (int64_t i = 0; i < layer; i++) column += layers.begin()[i]->num_out;
                   make_columns<T>({l, l, first, n, next}, in, num_rows, {out[row] + column, out.row},
                                   [](vf sums, vf) { return sums; });
               });
}

template <class T> Matrix<const T> read(const Matrix<T>& m) { return {m.at, m.row}; }

}  // namespace
