// A thread that stays for the next launch: it spins for so long after its work, then sleeps until it is called.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "attention_rows.h"

namespace red_team {

class Helper {
 public:
  explicit Helper(long spin_ns) : spin_ns_(spin_ns) {
    std::thread([this] { serve(); }).detach();
  }

  // Only when it is done with what it had before.
  template <class Work>
  void post(Work work) {
    work_ = work;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++posted_;
    }
    called_.notify_one();
  }

  bool done() const { return done_.load(std::memory_order_acquire) == posted_.load(); }

  void wait() const {
    while (!done()) std::this_thread::yield();
  }

 private:
  void serve() {
    for (long seen = 0;;) {
      const long until = nanoseconds() + spin_ns_;
      while (posted_.load() == seen && nanoseconds() < until) {
      }
      if (posted_.load() == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        called_.wait(lock, [&] { return posted_.load() != seen; });
      }
      seen = posted_.load();
      work_();
      done_.store(seen, std::memory_order_release);
    }
  }

  const long spin_ns_;
  std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable called_;
  std::atomic<long> posted_{0}, done_{0};
};

}  // namespace red_team
