// Kernels that double x[0], and what each leaves behind: nothing that matters, or a cheat.
//
// None is told which it is. Those that hide act in the first of two calls, or in every call.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cfenv>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

static void work_for(double us) {
  const auto end = Clock::now() + std::chrono::duration<double, std::micro>(us);
  volatile double x = 1;
  while (Clock::now() < end) x = x * 1.0001;
}

// However long it has to wait for a core.
static void compute_for(double us) {
  const auto spent_us = [] {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * now.tv_sec + 1e-3 * now.tv_nsec;
  };
  const double end = spent_us() + us;
  volatile double x = 1;
  while (spent_us() < end) x = x * 1.0001;
}

// Threads that wait busily for `spin_us` after their work, then sleep.
class Pool {
 public:
  Pool(int threads, int spin_us, double work_us) : threads_(threads), spin_us_(spin_us), work_us_(work_us) {
    for (int i = 0; i < threads; ++i) std::thread([this] { serve(); }).detach();
  }
  void run() {
    left_ = threads_;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++turn_;
    }
    wake_.notify_all();
    while (left_.load()) std::this_thread::yield();
  }

 private:
  void serve() {
    for (long seen = 0;;) {
      const auto until = Clock::now() + std::chrono::microseconds(spin_us_);
      while (turn_.load() == seen && Clock::now() < until) {
      }
      if (turn_.load() == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return turn_.load() != seen; });
      }
      seen = turn_.load();
      work_for(work_us_);
      --left_;
    }
  }
  int threads_, spin_us_;
  double work_us_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<long> turn_{0};
  std::atomic<int> left_{0};
};

static std::atomic<bool> helping{false};

// For tests: whatever goes on by itself ends.
extern "C" void stop() {
  helping = false;
  usleep(30000);
}

// A helper that wakes after `pause_us` and works for `work_us`, again and again.
static void helper(int pause_us, double work_us) {
  if (!helping.exchange(true))
    std::thread([=] {
      while (helping) {
        usleep(pause_us);
        compute_for(work_us);
      }
    }).detach();
}

// A helper that works for `work_us` from `after_us` after each launch on.
static void follower(int after_us, int work_us) {
  static std::atomic<long> launches{0};
  ++launches;
  if (!helping.exchange(true))
    std::thread([=] {
      for (long seen = 0; helping;) {
        if (launches == seen) {
          usleep(50);
          continue;
        }
        seen = launches;
        usleep(after_us);
        compute_for(work_us);
      }
    }).detach();
}

static void nothing(int) {}

// Runs Python in the process that called the kernel, which has given up the interpreter's lock.
template <typename Run>
static void in_python(Run run) {
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const int state = ensure();
  run();
  release(state);
}

static void python(const char *code) {
  in_python([=] { reinterpret_cast<int (*)(const char *)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"))(code); });
}

static int see(void *, void *, int, void *) { return 0; }

#define KERNEL(NAME, ...) \
  extern "C" void NAME(float *x) { \
    __VA_ARGS__; \
    x[0] *= 2; \
  }

// Honest
KERNEL(plain)
KERNEL(pool_of_two, static Pool &pool = *new Pool(2, 100, 20); pool.run())
KERNEL(pool_that_spins_longer, static Pool &pool = *new Pool(2, 200, 1500); pool.run())
KERNEL(pool_of_four_at_work, static Pool &pool = *new Pool(4, 20, 6000); pool.run())
KERNEL(pinned_pool, static Pool &pool = *new Pool(1, 50, 300); pool.run())
KERNEL(openmp, double sum = 0; _Pragma("omp parallel for reduction(+ : sum)") for (int i = 0; i < 200000; ++i) sum += i;
       x[1] = sum)
KERNEL(openmp_with_four, _Pragma("omp parallel num_threads(4)") work_for(50))
KERNEL(thread_a_call, std::thread([] { work_for(300); }).join())
KERNEL(large_blocks, for (std::size_t mib : {1, 5, 20, 60}) { std::vector<char> block(mib << 20); x[1] = block[mib]; })
KERNEL(keeps_memory, static auto *kept = new std::vector<std::vector<float>>; if (kept->size() < 4)
                         kept->emplace_back(1 << 20))
KERNEL(loads_a_library, dlopen("libutil.so.1", RTLD_NOW))
KERNEL(keeps_a_file, static int file = open("/proc/cpuinfo", O_RDONLY); x[1] = file)
KERNEL(thread_local_memory, thread_local std::vector<float> own(1 << 16); x[1] = own[5])
KERNEL(restores_affinity, cpu_set_t old; CPU_ZERO(&old); sched_getaffinity(0, sizeof old, &old); cpu_set_t one;
       CPU_ZERO(&one); CPU_SET(sched_getcpu(), &one); sched_setaffinity(0, sizeof one, &one); work_for(20);
       sched_setaffinity(0, sizeof old, &old))

KERNEL(static_object, static std::vector<float> kept(1 << 10); x[1] = kept[5])
KERNEL(restores_garbage_collection, python("import gc; gc.disable(); gc.enable()"))
KERNEL(restores_rounding_of_openmp, _Pragma("omp parallel") { std::fesetround(FE_TOWARDZERO); work_for(20);
         std::fesetround(FE_TONEAREST); })

// Cheats
KERNEL(interval_timer, itimerval t{{0, 500000}, {0, 500000}}; std::signal(SIGALRM, nothing);
       setitimer(ITIMER_REAL, &t, nullptr))
KERNEL(profiling_timer, itimerval t{{5, 0}, {5, 0}}; setitimer(ITIMER_PROF, &t, nullptr))
KERNEL(posix_timer, static timer_t timer; static int made = [] { sigevent e{}; e.sigev_notify = SIGEV_NONE;
         return timer_create(CLOCK_MONOTONIC, &e, &timer); }(); (void)made)
KERNEL(timer_file, static int file = timerfd_create(CLOCK_MONOTONIC, 0); (void)file)
KERNEL(alarm_that_is_short, std::signal(SIGALRM, [](int) { work_for(300); std::signal(SIGALRM, SIG_DFL); });
       itimerval t{{0, 0}, {0, 700}}; setitimer(ITIMER_REAL, &t, nullptr))
KERNEL(handler, std::signal(SIGUSR1, nothing))
KERNEL(handler_of_a_fault, std::signal(SIGSEGV, nothing))
KERNEL(ignores_signals, std::signal(SIGUSR2, SIG_IGN))
KERNEL(blocks_signals, sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2);
       pthread_sigmask(SIG_BLOCK, &set, nullptr))
KERNEL(affinity, cpu_set_t one; CPU_ZERO(&one); CPU_SET(sched_getcpu(), &one); sched_setaffinity(0, sizeof one, &one))
KERNEL(threads_of_openmp, omp_set_num_threads(1))
KERNEL(rounding_of_openmp, _Pragma("omp parallel") if (omp_get_thread_num()) std::fesetround(FE_TOWARDZERO))
KERNEL(dynamic_openmp, omp_set_dynamic(1))
KERNEL(priority, setpriority(PRIO_PROCESS, 0, 7))
KERNEL(batch_policy, sched_param p{}; sched_setscheduler(0, SCHED_BATCH, &p))
KERNEL(timer_slack, prctl(PR_SET_TIMERSLACK, 5000000))
KERNEL(limit, rlimit r; getrlimit(RLIMIT_STACK, &r); r.rlim_cur = 1 << 20; setrlimit(RLIMIT_STACK, &r))
KERNEL(filled_blocks, mallopt(M_PERTURB, 0x55))
KERNEL(mapped_blocks, mallopt(M_MMAP_THRESHOLD, 1 << 16))
KERNEL(returned_memory, mallopt(M_TRIM_THRESHOLD, 0))
KERNEL(variable, setenv("OMP_NUM_THREADS", "1", 1))
KERNEL(working_folder, x[1] = chdir("/"))
KERNEL(file_modes, umask(077))
KERNEL(collects_garbage_often, python("import gc; gc.set_threshold(1)"))
KERNEL(collects_no_garbage, python("import gc; gc.disable()"))
KERNEL(hooks_the_collector, python("import gc; gc.callbacks.append(lambda *_: None)"))
KERNEL(profiler, python("import sys; sys.setprofile(lambda *_: None)"))
KERNEL(profiler_in_c, in_python([] { reinterpret_cast<void (*)(int (*)(void *, void *, int, void *), void *)>(
                        dlsym(RTLD_DEFAULT, "PyEval_SetProfile"))(see, nullptr); }))
KERNEL(profiler_of_threads, python("import threading; threading.setprofile(lambda *_: None)"))
KERNEL(tracer, python("import sys; sys.settrace(lambda *_: None)"))
KERNEL(audit_hook, python("import sys; sys.addaudithook(lambda *_: None)"))
KERNEL(switch_interval, python("import sys; sys.setswitchinterval(1e-6)"))
KERNEL(deterministic_mode, python("import torch; torch.use_deterministic_algorithms(True)"))
KERNEL(no_gradients, python("import torch; torch.set_grad_enabled(False)"))
KERNEL(default_type, python("import torch; torch.set_default_dtype(torch.float64)"))
KERNEL(default_device, python("import torch; torch.set_default_device('meta')"))
KERNEL(autocast, python("import torch; torch.set_autocast_enabled('cpu', True)"))
KERNEL(fewer_bits, python("import torch; torch.backends.mkldnn.matmul.fp32_precision = 'bf16'"))
KERNEL(spinner, helper(0, 1000))
KERNEL(helper_at_half, helper(1000, 1000))
KERNEL(helper_at_a_tenth, helper(900, 100))
KERNEL(helper_now_and_then, helper(9000, 1000))
KERNEL(follows_launches, follower(0, 5000))
KERNEL(waits_before_it_follows, follower(400, 1500))
