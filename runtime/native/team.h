// Threads for one call: those of the OpenMP library that torch has loaded, so that there is one pool and no
// more threads than cores. They wait for each other only inside a call.
#pragma once
#include <dlfcn.h>
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "tiles.h"

// One part of a call: how many of its pieces are taken, and how many done.
struct alignas(64) Part {
    std::atomic<long> taken{0}, done{0};
};

// One thread's way through the parts of a call, which all threads walk in the same order.
//
// A part is over when its pieces are done, whoever did them: nobody waits for a thread that has no core, or has
// not woken up yet, unless it holds a piece.
class Walker {
  public:
    explicit Walker(Part* next) : next_(next) {}

    // f(first, end) of pieces below `total` until none is left, `step` at a time; returns when all are done.
    template <class F> void each(long total, long step, F f) {
        Part& part = *next_++;
        long num_mine = 0;
        for (long i; (i = part.taken.fetch_add(step, std::memory_order_relaxed)) < total;) {
            const long end = std::min(total, i + step);
            f(i, end);
            num_mine += end - i;
        }
        if (num_mine) part.done.fetch_add(num_mine, std::memory_order_acq_rel);
        for (int spins = 0; part.done.load(std::memory_order_acquire) < total; spins++)
            if (spins < MOST_SPINS) _mm_pause();
            else sched_yield();
    }

  private:
    static constexpr int MOST_SPINS = 4000;
    Part* next_;
};

// Runs f(walker) on every thread; there are `num_parts` parts.
template <class F> void walk(int num_threads, int num_parts, F f) {
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    static const auto parallel = (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
    const std::unique_ptr<Part[]> parts(new Part[size_t(num_parts)]);
    struct Call { Part* parts; F* f; } call{parts.get(), &f};
    const auto one = [](void* data) {
        auto* call = (Call*)data;
        Walker walker(call->parts);
        tiles::forget();
        (*call->f)(walker);
        tiles::release();
    };
    if (num_threads <= 1 || !parallel) one(&call);
    else parallel(one, &call, unsigned(num_threads), 0);
}

// Room that a thread keeps from call to call, and that only grows. Much room is on huge pages where the kernel gives
// them: rows of it lie pages apart.
class Room {
  public:
    ~Room() { give_back(); }
    char* take(size_t num_bytes) {
        if (num_bytes > has_) {
            give_back();
            align_ = num_bytes < HUGE_PAGE / 2 ? 64 : HUGE_PAGE;
            has_ = (num_bytes + align_ - 1) / align_ * align_;
            at_ = (char*)::operator new[](has_, std::align_val_t(align_));
            if (align_ == HUGE_PAGE) madvise(at_, has_, MADV_HUGEPAGE);
        }
        return at_;
    }

  private:
    static constexpr size_t HUGE_PAGE = 2 << 20;
    void give_back() { ::operator delete[](at_, std::align_val_t(align_)); }
    char* at_ = nullptr;
    size_t has_ = 0, align_ = 64;
};
