// Paged attention: the inputs of one layer of one step. The same records exist in records.py.
#pragma once
#include <cstdint>

enum Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// N sequences with some query rows each; all sizes in elements.
struct Sequences {
    int64_t num_sequences;
    const int64_t* start;     // [N + 1] first query row of each, and the end of the last
    const int64_t* position;  // [N] of the first query in its sequence
    const int64_t* table;     // [N] addresses of int64 block numbers
    const int64_t* slot;      // [T] destination of each row's key and value: block * block_size + offset
};

struct Layer {
    void *keys, *values;  // [slots, num_key_heads, width]
    int32_t format, num_heads, num_key_heads, key_width, value_width, block_size;
    float scaling, softcap;  // softcap 0: none
    int64_t window;          // 0: none
    const float* sinks;      // [num_heads], or null
};

// Rows and heads may lie apart: `row` and `head` are their strides.
struct Rows {
    void* at;
    int64_t row, head;
};
