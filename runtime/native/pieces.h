// Attention of one layer, cut into pieces that threads take.
#pragma once
#include "worker.h"

namespace {

// Pieces of work of one layer of a step.
class Pieces {
  public:
    Pieces(const Sequences& s, const Layer& layer, int num_threads) {
        const int group = layer.num_heads / layer.num_key_heads;
        // Rows per piece: fewer if that gives each thread several pieces.
        const int64_t all_rows = s.start[s.num_sequences] * layer.num_heads;
        const int64_t most_rows = std::clamp<int64_t>(all_rows / (4 * num_threads), LEAST_TILE_ROWS, MOST_TILE_ROWS);
        const int64_t most_queries = std::max<int64_t>(1, most_rows / group);
        // A few pieces per thread; beyond that, heads stay together.
        const int64_t most_heads =
            std::clamp<int64_t>(s.num_sequences * layer.num_key_heads / (2 * num_threads), 1, layer.num_key_heads);
        for (int64_t i = 0; i < s.num_sequences; i++)
            for (int64_t first = 0, num; first < s.start[i + 1] - s.start[i]; first += num) {
                num = std::min(most_queries, s.start[i + 1] - s.start[i] - first);
                const int64_t rows = std::max<int64_t>(num * group, LANES);
                const int at_once = int(std::clamp<int64_t>(most_rows / rows, 1, most_heads));
                for (int head = 0; head < layer.num_key_heads; head += at_once)
                    pieces_.push_back({i, first, int(num), head, std::min(at_once, layer.num_key_heads - head)});
            }
        // Pieces of a long prompt take unequal times: the longest first, so that no thread is left alone with one.
        const bool is_long = tiles::HERE && s.start[s.num_sequences] > 8 * s.num_sequences;
        if (is_long) std::reverse(pieces_.begin(), pieces_.end());
        at_once_ = is_long ? 1 : std::max<int64_t>(1, size() / (4 * num_threads));
    }
    int64_t size() const { return int64_t(pieces_.size()); }

    // Computes all pieces, on the threads that call this.
    template <class T> void attend(Walker& walker, Worker<T>& worker) const {
        walker.each(size(), at_once_, [&](int64_t first, int64_t end) {
            for (const Piece* p = pieces_.data() + first; p < pieces_.data() + end; p++)
                worker.attend(*p, p + 1 < pieces_.data() + end ? p + 1 : nullptr);
        });
    }

  private:
    static constexpr int64_t LEAST_TILE_ROWS = std::min(MOST_TILE_ROWS, 768);
    int64_t at_once_;
    std::vector<Piece> pieces_;
};

}  // namespace
