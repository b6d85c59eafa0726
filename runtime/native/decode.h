// A whole step of a decoder in one call: every thread walks through the same parts and takes pieces of each (team.h). A
// piece is a row, a block of columns, or the attention of some queries. Each number format is compiled in a file of its
// own, so that they compile in parallel.
#pragma once
#include "experts.h"
#include "pieces.h"
#include "rows.h"

namespace {

// Buffers of one step, reused by the next. Rows lie an odd number of cache lines apart: at a power of two, one column
// of all rows would share a few places of a cache.
template <class T> struct Buffers {
    Matrix<T> hidden, normed, latent, heads, attended, more, mlp, pairs;
    Buffers(const Decoder& d, int64_t rows, int64_t latent_columns, int64_t head_columns, int64_t attended_columns) {
        static thread_local Room room;
        const int64_t sent = rows * d.num_chosen;
        struct Place { Matrix<T>* matrix; int64_t rows, columns; size_t at; };
        Place places[] = {{&hidden, rows, d.width}, {&normed, rows, d.width}, {&latent, rows, latent_columns},
                          {&heads, rows, head_columns}, {&attended, rows, attended_columns},
                          {&more, rows, d.width}, {&mlp, sent, d.mlp_width},
                          {&pairs, d.num_experts ? sent : 0, d.width}};
        constexpr int64_t LINE = 64 / sizeof(T);
        size_t all = 0;
        for (Place& place : places) {
            place.at = all;
            place.matrix->row = ((place.columns + LINE - 1) / LINE | 1) * LINE;
            all += sizeof(T) * size_t(place.rows * place.matrix->row);
        }
        char* room_at = room.take(all);
        for (const Place& place : places) place.matrix->at = (T*)(room_at + place.at);
    }
};

template <class T> void decode(const Decoder& d, const Step& step, int num_threads) {
    const Sequences& s = *step.sequences;
    const int64_t rows = s.start[s.num_sequences], width = d.width;
    const Layer& a = d.layers[0].attention;
    const int64_t q_columns = a.num_heads * a.key_width, k_columns = a.num_key_heads * a.key_width;
    const int64_t head_columns = q_columns + k_columns + a.num_key_heads * a.value_width;
    const int64_t attended_columns = a.num_heads * a.value_width;
    const int64_t latent_columns = d.layers[0].kv_a.num_out + d.layers[0].q_a.num_out;
    const Buffers<T> b(d, rows, latent_columns, head_columns, attended_columns);
    const Pieces pieces(s, a, num_threads);
    const int64_t most_inputs = std::max({width, latent_columns, attended_columns, d.mlp_width});
    const WholeRows room = room_for_whole(d.has_whole ? rows * d.num_chosen : 0, most_inputs);
    Routes routes(d.num_experts ? rows : 0, d.num_chosen);
    const auto gate_up = [&](vf gate, vf up) { return gated<T>(gate, up, d); };
    const auto first_of = [](const DecoderLayer& layer) { return layer.kv_a.num_out ? &layer.kv_a : &layer.q; };
    const int parts = (d.num_experts ? 23 : 13) + (latent_columns ? 5 : 0);
    walk(num_threads, int(6 + parts * (step.end - step.first)), [&](Walker& walker) {
        each_row(walker, rows, [&](int64_t r) {
            if (step.token) scale_row((const T*)d.embedding + step.token[r] * width, d.embedding_scale, b.hidden[r], width);
            else std::memcpy(b.hidden[r], (T*)step.hidden + r * width, sizeof(T) * size_t(width));
        });
        // Adds rows of `more` to the state, each behind a norm of its own, and normalises the new state.
        const auto add = [&](int64_t r, const Norm& after) { add_row(b.hidden[r], b.more[r], after, d.residual_scale); };
        const auto add_and_norm = [&](const Norm* after, const Norm& before) {
            each_row(walker, rows, [&](int64_t r) {
                if (after) add(r, *after);
                norm_row(b.hidden[r], before, b.normed[r]);
            });
        };
        for (int64_t i = step.first; i < step.end; i++) {
            const DecoderLayer& layer = d.layers[i];
            const bool has_products = layer.gate.num_out;
            const Linear& after = i + 1 == step.end ? d.head : *first_of(d.layers[i + 1]);
            add_and_norm(i > step.first ? &d.layers[i - 1].after_mlp : nullptr, layer.before_attention);
            if (layer.kv_a.num_out) {
                const int64_t kv_columns = layer.kv_a.num_out;
                const Matrix<T> q_latent{b.latent.at + kv_columns, b.latent.row}, kv{b.heads.at + q_columns, b.heads.row};
                linear(walker, {&layer.kv_a, &layer.q_a}, {&layer.q}, read(b.normed), room, rows, b.latent);
                each_row(walker, rows, [&](int64_t r) {
                    norm_row(b.latent[r], layer.of_keys, b.latent[r]);
                    if (layer.q_a.num_out) norm_row(q_latent[r], layer.of_queries, q_latent[r]);
                });
                linear(walker, {&layer.q}, {&layer.k}, read(layer.q_a.num_out ? q_latent : b.normed), room, rows, b.heads);
                linear(walker, {&layer.k}, {&layer.o}, read(b.latent), room, rows, kv);
                each_row(walker, rows, [&](int64_t r) {
                    keep_latent_heads(d, layer, b.heads[r], kv[r], b.latent[r] + layer.k.num_in, s.slot[r], step.position[r]);
                });
            } else {
                linear(walker, {&layer.q, &layer.k, &layer.v}, {&layer.o}, read(b.normed), room, rows, b.heads);
                each_row(walker, rows, [&](int64_t r) {
                    T* q = b.heads[r];
                    keep_heads(d, layer, q, q + q_columns, q + q_columns + k_columns, s.slot[r], step.position[r]);
                });
            }
            Worker<T> worker(layer.attention, s, {b.heads.at, b.heads.row, a.key_width},
                             {b.attended.at, b.attended.row, a.value_width});
            pieces.attend(walker, worker);
            linear(walker, {&layer.o}, {has_products ? &layer.gate : &after}, read(b.attended), room, rows, b.more);
            add_and_norm(&layer.after_attention, layer.before_mlp);
            if (has_products) {
                const WholeRows whole = as_whole<T>(walker, {&layer.gate}, read(b.normed), rows, room);
                each_block(walker, {&layer.gate}, {&layer.down}, read(b.normed), whole, rows,
                           [&](int64_t, int64_t first, int n, int64_t row, int64_t num_rows, const Operand<T>& in, const void* next) {
                               make_columns<T>({layer.gate, layer.up, first, n, next}, in, num_rows,
                                               {b.mlp[row] + first, b.mlp.row}, gate_up);
                           });
                linear(walker, {&layer.down}, {&after}, read(b.mlp), room, rows, b.more);
            }
            if (layer.experts.num)
                mix(walker, layer.experts, routes, read(b.normed), room, rows, b.pairs, b.mlp, b.more, has_products, gate_up);
        }
        bool adds = step.end > step.first;
        const Norm& after_last = d.layers[step.end ? step.end - 1 : 0].after_mlp;
        if (step.hidden)
            each_row(walker, rows, [&](int64_t r) {
                if (adds) add(r, after_last);
                std::memcpy((T*)step.hidden + r * width, b.hidden[r], sizeof(T) * size_t(width));
            });
        if (!step.num_sampled) return;
        if (step.hidden) adds = false;  // has been done already
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

// Computes one linear layer alone, from rows [T][num_in] to [T][num_out].
template <class T> void multiply(const Linear& l, const void* x, int64_t rows, void* out, int num_threads) {
    const WholeRows room = room_for_whole(l.bits ? rows : 0, l.num_in);
    walk(num_threads, 2, [&](Walker& walker) {
        linear<T>(walker, {&l}, {}, {(const T*)x, l.num_in}, room, rows, {(T*)out, l.num_out});
    });
}

}  // namespace
