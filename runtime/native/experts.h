// Mixture of experts: a router sends each row to a few experts, and weighs their results.
//
// Rows are stored expert by expert, one copy for each choice, and multiplied in panels of one expert. A row's results
// are added in the order of its experts' weights, so that its sum never depends on the other rows.
#pragma once
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "decoder.h"
#include "products.h"

namespace {

// Routes of the rows of one layer.
class Routes {
  public:
    struct Panel {
        int64_t expert, first, num;
    };

    Routes(int64_t rows, int64_t num_chosen)
        : num_chosen_(num_chosen), expert(size_t(rows * num_chosen)), place(expert.size()), row(expert.size()), weight(expert.size()),
          of_shared(size_t(rows)) {}

    // Computes the experts of row r = x and their weights, from its router's logits (Shazeer et al., "Outrageously
    // large neural networks", 2017; with a bias that only affects the choice, and by groups: DeepSeek-V3, 2024, section
    // 2.1.2).
    template <class T> void choose(const Experts& e, int64_t r, const T* x, int64_t width) {
        static thread_local std::vector<float> scores, wanted;
        scores.resize(size_t(e.num)), wanted.resize(size_t(e.num));
        for (int64_t i = 0; i < e.num; i++) {
            const vf logit = set1(dot(x, e.router + i * width, width) + (e.router_bias ? e.router_bias[i] : 0));
            store_part(&scores[size_t(i)], e.rounds ? kept<T>(logit) : logit, 1);
        }
        score(e, scores);
        for (int64_t i = 0; i < e.num; i++) wanted[size_t(i)] = scores[size_t(i)] + (e.bias ? e.bias[i] : 0);
        if (e.num_groups > e.num_chosen_groups) leave_out_groups(e, wanted);
        float sum = 0;
        for (int64_t k = r * num_chosen_; k < (r + 1) * num_chosen_; k++) {
            const auto best = std::max_element(wanted.begin(), wanted.end()) - wanted.begin();
            expert[size_t(k)] = best;
            sum += weight[size_t(k)] = scores[size_t(best)];
            wanted[size_t(best)] = -NEVER;
        }
        for (int64_t k = r * num_chosen_; k < (r + 1) * num_chosen_; k++)
            weight[size_t(k)] *= e.is_normalised ? e.scale / sum : e.scale;
        of_shared[size_t(r)] = e.shared_gate ? sigmoid(dot(x, e.shared_gate, width)) : 1;
    }

    // Assigns each choice its place among all, expert by expert, and cuts the places into panels.
    template <class T> void sort(const Experts& e) {
        std::vector<int64_t> end(size_t(e.num + 1));
        for (const int64_t to : expert) end[size_t(to + 1)]++;
        panels.clear();
        for (int64_t i = 0, first = 0; i < e.num; i++) {
            const int64_t last = first + end[size_t(i + 1)], most = rows_at_once<T>(e.each[i].gate, last - first);
            for (int64_t at = first; at < last; at += most) panels.push_back({i, at, std::min(most, last - at)});
            first = end[size_t(i + 1)] = last;
        }
        for (size_t k = 0; k < expert.size(); k++) {
            place[k] = end[size_t(expert[k])]++;
            row[size_t(place[k])] = int64_t(k) / num_chosen_;
        }
    }

  private:
    static constexpr float NEVER = std::numeric_limits<float>::infinity();

    // Excludes the experts of all groups but the best.
    static void leave_out_groups(const Experts& e, std::vector<float>& wanted) {
        static thread_local std::vector<float> sums, group;
        const int64_t size = e.num / e.num_groups;
        sums.clear();
        for (auto at = wanted.begin(); at != wanted.end(); at += size) {
            group.assign(at, at + size);
            std::partial_sort(group.begin(), group.begin() + e.num_compared, group.end(), std::greater<>());
            sums.push_back(std::accumulate(group.begin(), group.begin() + e.num_compared, 0.f));
        }
        for (int64_t left = e.num_groups - e.num_chosen_groups; left > 0; left--) {
            const auto worst = std::min_element(sums.begin(), sums.end());
            std::fill_n(wanted.begin() + (worst - sums.begin()) * size, size, -NEVER);
            *worst = NEVER;
        }
    }

    static float sigmoid(float a) { return 1 / (1 + std::exp(-a)); }

    template <class T> static float dot(const T* x, const float* w, int64_t width) {
        vf sums = zero();
        for (int64_t i = 0; i < width; i += LANES) {
            const int n = int(std::min<int64_t>(LANES, width - i));
            sums = fma(load_part(x + i, n), load_part(w + i, n), sums);
        }
        return sum(sums);
    }

    // Computes scores from logits, in place.
    static void score(const Experts& e, std::vector<float>& all) {
        const float top = *std::max_element(all.begin(), all.end());
        float sum = 0;
        for (float& a : all) sum += a = e.score == SIGMOID ? sigmoid(a) : std::exp(a - top);
        if (e.score == SOFTMAX)
            for (float& a : all) a /= sum;
    }

    const int64_t num_chosen_;

  public:
    std::vector<int64_t> expert, place, row;  // by choice; by choice; by place
    std::vector<float> weight, of_shared;       // by choice; by row
    std::vector<Panel> panels;
};

// Calls f(expert, first column, n, first row, rows, operand, what is read next) for the column blocks of each panel of
// x.
template <class T, class F>
void each_expert(Walker& walker, const Experts& e, const Routes& routes, Linear Expert::*part, const Matrix<const T>& x,
                 const WholeRows& whole, F f) {
    Operands<T> operands({&(e.each->*part)}, x, whole);
    const int64_t blocks = num_blocks(e.each[0].*part);
    walker.each_own(int64_t(routes.panels.size()) * blocks, [&](int64_t piece, int64_t end) {
        const auto& panel = routes.panels[size_t(piece / blocks)];
        const int64_t first = piece % blocks * BLOCK, after = piece + 1;
        const void* next = after < end ? block_at<T>(e.each[routes.panels[size_t(after / blocks)].expert].*part, after % blocks) : nullptr;
        const Expert& expert = e.each[panel.expert];
        f(expert, first, int(std::min<int64_t>(BLOCK, (expert.*part).num_out - first)), panel.first, panel.num,
          operands.from(panel.first, panel.num), next);
    });
}

// out = the experts' results for rows x, plus, if `shared` is set, the previous out times its gate. `pairs` and `inner`
// have a row for each choice.
template <class T, class Gated>
void mix(Walker& walker, const Experts& e, Routes& routes, const Matrix<const T>& x, const WholeRows& room, int64_t rows,
         const Matrix<T>& pairs, const Matrix<T>& inner, const Matrix<T>& out, bool shared, Gated gated) {
    const int64_t num_pairs = rows * e.num_chosen, width = e.each->gate.num_in;
    each_row(walker, rows, [&](int64_t r) { routes.choose(e, r, x[r], width); });
    walker.each(1, 1, [&](int64_t, int64_t) { routes.sort<T>(e); });
    each_row(walker, num_pairs, [&](int64_t p) { std::memcpy(pairs[p], x[routes.row[size_t(p)]], sizeof(T) * size_t(width)); });
    const WholeRows whole = as_whole<T>(walker, {&e.each->gate}, read(pairs), num_pairs, room);
    each_expert(walker, e, routes, &Expert::gate, read(pairs), whole,
                [&](const Expert& expert, int64_t first, int n, int64_t row, int64_t num_rows, const Operand<T>& in, const void* next) {
                    make_columns<T>({expert.gate, expert.up, first, n, next}, in, num_rows, {inner[row] + first, inner.row}, gated);
                });
    const WholeRows between = as_whole<T>(walker, {&e.each->down}, read(inner), num_pairs, room);
    each_expert(walker, e, routes, &Expert::down, read(inner), between,
                [&](const Expert& expert, int64_t first, int n, int64_t row, int64_t num_rows, const Operand<T>& in, const void* next) {
                    make_columns<T>({expert.down, expert.down, first, n, next}, in, num_rows, {pairs[row] + first, pairs.row},
                                    [](vf sums, vf) { return sums; });
                });
    each_row(walker, rows, [&](int64_t r) {
        for (int64_t i = 0; i < width; i += LANES) {
            const int n = int(std::min<int64_t>(LANES, width - i));
            vf all = zero();
            for (int64_t k = r * e.num_chosen; k < (r + 1) * e.num_chosen; k++)
                all = fma(set1(routes.weight[size_t(k)]), load_part(pairs[routes.place[size_t(k)]] + i, n), all);
            if (shared) all = kept<T>(all) + kept<T>(load_part(out[r] + i, n) * set1(routes.of_shared[size_t(r)]));
            store_part(out[r] + i, all, n);
        }
    });
}

}  // namespace
