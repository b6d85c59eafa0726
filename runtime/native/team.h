// Threads for one call: those of the OpenMP library that torch has loaded, so that there is one pool and no
// more threads than cores. They wait for each other only inside a call.
#pragma once
#include <dlfcn.h>
#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <new>

class Team {
  public:
    // Runs f(team, index) on every thread.
    template <class F> static void run(int num_threads, F f) {
        using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
        using Number = int (*)();
        static const auto parallel = (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
        static const auto index = (Number)dlsym(RTLD_DEFAULT, "omp_get_thread_num");
        static const auto size = (Number)dlsym(RTLD_DEFAULT, "omp_get_num_threads");
        Team team;
        if (num_threads <= 1 || !parallel || !index || !size) {
            team.size_ = 1;
            f(team, 0);
            return;
        }
        struct Call { Team* team; F* f; } call{&team, &f};
        parallel(
            [](void* data) {
                auto* call = (Call*)data;
                call->team->size_.store(size(), std::memory_order_relaxed);
                (*call->f)(*call->team, index());
            },
            &call, unsigned(num_threads), 0);
    }

    int size() const { return size_.load(std::memory_order_relaxed); }

    // The next piece of work of this part of the call; whoever is free takes it.
    long next(long step = 1) { return next_.fetch_add(step, std::memory_order_relaxed); }

    // Returns when all have come, and begins the next part. A thread that waits for one without a core gives
    // its own away.
    void wait() {
        const long turn = turn_.load(std::memory_order_relaxed);
        if (num_here_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
            num_here_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; spins++)
            if (spins < 4000) _mm_pause();
            else sched_yield();
    }

  private:
    alignas(64) std::atomic<long> next_{0};
    alignas(64) std::atomic<long> turn_{0};
    alignas(64) std::atomic<int> num_here_{0};
    std::atomic<int> size_{1};
};

// Room that a thread keeps from call to call, and that only grows.
class Room {
  public:
    ~Room() { ::operator delete[](at_, std::align_val_t(64)); }
    char* take(size_t num_bytes) {
        if (num_bytes > has_) {
            ::operator delete[](at_, std::align_val_t(64));
            at_ = (char*)::operator new[](num_bytes, std::align_val_t(64));
            has_ = num_bytes;
        }
        return at_;
    }

  private:
    char* at_ = nullptr;
    size_t has_ = 0;
};
