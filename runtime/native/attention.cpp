// Attention of one layer of a step, for any model.
#include "pieces.h"

namespace {

template <class T> void keep_rows(void* cache, const int64_t* slot, int64_t num_rows, Rows from, int heads, int width) {
    for (int64_t t = 0; t < num_rows; t++)
        for (int head = 0; head < heads; head++)
            std::memcpy((T*)cache + (slot[t] * heads + head) * width,
                        (const T*)from.at + t * from.row + head * from.head, sizeof(T) * size_t(width));
}

template <class T> void attend_layer(const Layer& layer, const Sequences& s, Rows q, Rows out, int num_threads) {
    const Pieces pieces(s, layer, num_threads);
    walk(int(std::min<int64_t>(num_threads, pieces.size())), 1, [&](Walker& walker) {
        Worker<T> worker(layer, s, q, out);
        pieces.attend(walker, worker);
    });
}

}  // namespace

// Stores the rows' keys and values in their slots, then computes attention.
extern "C" void sundog_attend(const Layer* layer, const Sequences* s, const Rows* q, const Rows* k, const Rows* v,
                              const Rows* out, int32_t num_threads) {
    const int64_t num_rows = s->start[s->num_sequences];
    const auto all = [&](auto zero) {
        using T = decltype(zero);
        keep_rows<T>(layer->keys, s->slot, num_rows, *k, layer->num_key_heads, layer->key_width);
        keep_rows<T>(layer->values, s->slot, num_rows, *v, layer->num_key_heads, layer->value_width);
        attend_layer<T>(*layer, *s, *q, *out, num_threads);
    };
    if (layer->format == FLOAT32) all(0.f);
    else if (layer->format == BFLOAT16) all(bf16{});
    else all(f16{});
}

extern "C" int32_t sundog_has_team() { return dlsym(RTLD_DEFAULT, "GOMP_parallel") != nullptr; }

// Instruction set that these kernels are compiled for, and whether it multiplies bf16 directly.
extern "C" const char* sundog_instructions() { return INSTRUCTIONS; }

extern "C" int32_t sundog_multiplies_bf16() { return !BY_FLOATS<bf16>; }

extern "C" int32_t sundog_has_tiles() { return tiles::HERE; }

// Returns whether the system lets this process use that instruction set.
extern "C" int32_t sundog_is_allowed() { return tiles::allowed(); }
