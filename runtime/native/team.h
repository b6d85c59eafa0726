// Threads of one call: those of the OpenMP library that torch has loaded, so that there is one pool and no more threads
// than cores. They wait for each other only inside a call.
#pragma once
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "tiles.h"

// A thread's share of one part of a call: the number of its pieces that are taken, those taken from the end counted
// above 2^32, and the number that are done.
struct alignas(64) Part {
    static constexpr uint64_t FROM_END = uint64_t(1) << 32;
    std::atomic<uint64_t> taken{0};
    std::atomic<long> done{0};

    // Returns the next piece of `size` from the front, or the last one: its number, or `size` if none is left.
    long take(long size, bool last) {
        uint64_t now = taken.load(std::memory_order_relaxed);
        do
            if (long(now % FROM_END + now / FROM_END) >= size) return size;
        while (!taken.compare_exchange_weak(now, now + (last ? FROM_END : 1), std::memory_order_relaxed));
        return last ? size - 1 - long(now / FROM_END) : long(now % FROM_END);
    }
};

// Progress of one thread through the parts of a call, which all threads walk in the same order.
//
// A part is over when its pieces are done, whoever did them: no thread waits for another that has no core, or has not
// woken up yet, unless that one has taken a piece.
class Walker {
  public:
    Walker(Part* next, int thread, int num_threads) : next_(next), thread_(thread), num_threads_(num_threads) {}

    // Calls f(first, end) for pieces below `total`, `step` at a time, until none is left; returns when all are done.
    template <class F> void each(long total, long step, F f) {
        Part& part = *next_;
        next_ += num_threads_;
        long num_mine = 0;
        for (long i; (i = long(part.taken.fetch_add(uint64_t(step), std::memory_order_relaxed))) < total;) {
            const long end = std::min(total, i + step);
            f(i, end);
            num_mine += end - i;
        }
        wait(part, num_mine, total);
    }

    // Calls f(piece, end) for pieces below `total`: first for this thread's own share, adjacent up to `end`, then from
    // the end of shares that other threads have not begun.
    template <class F> void each_own(long total, F f) {
        Part* parts = next_;
        next_ += num_threads_;
        long num_mine = 0;
        for (int i = 0; i < num_threads_; i++) {
            const int whose = (thread_ + i) % num_threads_;
            const long first = total * whose / num_threads_, end = total * (whose + 1) / num_threads_;
            for (long piece; (piece = first + parts[whose].take(end - first, i > 0)) < end; num_mine++)
                f(piece, i ? piece + 1 : end);
        }
        wait(*parts, num_mine, total);
    }

    // Returns the first of this thread's own pieces of `total`.
    long first_own(long total) const { return total * thread_ / num_threads_; }

  private:
    void wait(Part& part, long num_mine, long total) {
        if (num_mine) part.done.fetch_add(num_mine, std::memory_order_acq_rel);
        for (int spins = 0; part.done.load(std::memory_order_acquire) < total; spins++)
            if (spins < MOST_SPINS) spin();
            else sched_yield();
    }

    static constexpr int MOST_SPINS = 4000;
    Part* next_;
    const int thread_, num_threads_;
};

// Runs f(walker) on every thread; there are `num_parts` parts.
template <class F> void walk(int num_threads, int num_parts, F f) {
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    static const auto parallel = (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
    num_threads = parallel ? std::max(num_threads, 1) : 1;
    const std::unique_ptr<Part[]> parts(new Part[size_t(num_parts * num_threads)]);
    struct Call {
        Part* parts;
        F* f;
        int num_threads;
        std::atomic<int> num_here{0};
    } call{parts.get(), &f, num_threads};
    const auto one = [](void* data) {
        auto* call = (Call*)data;
        Walker walker(call->parts, call->num_here.fetch_add(1, std::memory_order_relaxed), call->num_threads);
        tiles::forget();
        (*call->f)(walker);
        tiles::release();
    };
    if (num_threads == 1) one(&call);
    else parallel(one, &call, unsigned(num_threads), 0);
}

// Buffer that a thread keeps from call to call, and that only grows. A large one is on huge pages if the kernel
// provides them, because its rows lie pages apart.
class Room {
  public:
    ~Room() { give_back(); }
    char* take(size_t num_bytes) {
        if (num_bytes > has_) {
            give_back();
            align_ = num_bytes < HUGE_PAGE / 2 ? 64 : HUGE_PAGE;
            has_ = (num_bytes + align_ - 1) / align_ * align_;
            at_ = (char*)::operator new[](has_, std::align_val_t(align_));
#if defined(MADV_HUGEPAGE)
            if (align_ == HUGE_PAGE) madvise(at_, has_, MADV_HUGEPAGE);
#endif
        }
        return at_;
    }

  private:
    static constexpr size_t HUGE_PAGE = 2 << 20;
    void give_back() { ::operator delete[](at_, std::align_val_t(align_)); }
    char* at_ = nullptr;
    size_t has_ = 0, align_ = 64;
};
