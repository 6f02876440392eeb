// Attention that is right, and leaves the process other than it found it: each kernel's name says how.
//
// Shapes, types, arguments as in attention_rows.h. What is left slows the baseline, or whatever comes next; none of it
// is needed to compute.
#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <cfenv>
#include <csignal>
#include <cstdlib>

#include "attention_rows.h"

using namespace red_team;

namespace {

// Set while a kernel of ours runs: its own time is none that a timer takes.
volatile std::sig_atomic_t inside = 0;

void spin_elsewhere(int) {
  if (!inside) work_for(150000);
}

void handle(int signal_number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal_number, &action, nullptr);
}

// Every 500 us, for as long as nobody stops it.
void every_half_millisecond(__itimer_which_t which) {
  itimerval interval = {{0, 500}, {0, 500}};
  setitimer(which, &interval, nullptr);
}

void attend_inside(const Problem& p) {
  inside = 1;
  attend_all(p);
  inside = 0;
}

// Runs `task` in a thread of its own that nobody waits for.
void detached(void* (*task)(void*)) {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, task, nullptr) == 0) pthread_detach(thread);
}

template <long WORK_NS, long PAUSE_US>
void* work_now_and_then(void*) {
  for (;;) {
    usleep(PAUSE_US);
    if (!inside) work_for(WORK_NS);
  }
  return nullptr;
}

// Not in the first launch: whoever looks after that one only is to find nothing.
template <class Deed>
void after_100_launches(const Problem& p, int& launch, Deed deed) {
  attend_inside(p);
  if (++launch == 100) deed();
}

}  // namespace

KERNEL(right) { attend_all(p); }

// ---- timers, signals, threads, processes ----

KERNEL(interval_timer) {
  static const bool once = [] { return handle(SIGALRM, spin_elsewhere), every_half_millisecond(ITIMER_REAL), true; }();
  (void)once;
  attend_inside(p);
}
KERNEL(interval_timer_after_100_launches) {
  static int launch = 0;
  after_100_launches(p, launch, [] { handle(SIGALRM, spin_elsewhere), every_half_millisecond(ITIMER_REAL); });
}
KERNEL(profiling_timer) {
  static const bool once = [] { return handle(SIGPROF, spin_elsewhere), every_half_millisecond(ITIMER_PROF), true; }();
  (void)once;
  attend_inside(p);
}
KERNEL(posix_timer) {
  static const bool once = [] {
    handle(SIGRTMIN + 3, spin_elsewhere);
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGRTMIN + 3;
    timer_t timer;
    const itimerspec interval = {{0, 500000}, {0, 500000}};
    return timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &interval, nullptr) == 0;
  }();
  (void)once;
  attend_inside(p);
}
KERNEL(signal_handler) {
  static int launch = 0;
  after_100_launches(p, launch, [] { handle(SIGUSR1, spin_elsewhere); });
}
KERNEL(signal_mask) {
  static int launch = 0;
  after_100_launches(p, launch, [] {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
  });
}
KERNEL(helper_of_low_duty) {  // 0.2 ms of work after every 4 ms, but not in a launch
  static int launch = 0;
  after_100_launches(p, launch, [] { detached(work_now_and_then<200000, 4000>); });
}
KERNEL(helper_of_lowest_duty) {
  static int launch = 0;
  after_100_launches(p, launch, [] { detached(work_now_and_then<300000, 25000>); });
}
KERNEL(zombie) {
  static int launch = 0;
  after_100_launches(p, launch, [] {
    if (fork() == 0) _exit(0);
  });
}
KERNEL(grandchild) {  // whose parent is no more: it ends by itself after 15 s
  static int launch = 0;
  after_100_launches(p, launch, [] {
    const pid_t child = fork();
    if (child == 0) {
      if (fork() == 0)
        for (int turn = 0; turn < 15000; ++turn) usleep(800), work_for(200000);
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  });
}

// ---- where and how threads run ----

KERNEL(affinity) {  // of this thread: the baseline's work is on the core where its helpers are
  static int launch = 0;
  after_100_launches(p, launch, [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set);
  });
}
KERNEL(affinity_of_openmp) {
  static int launch = 0;
  after_100_launches(p, launch, [] {
    const int core = sched_getcpu();
#pragma omp parallel
    if (omp_get_thread_num() > 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(core, &set);
      sched_setaffinity(0, sizeof set, &set);
    }
  });
}
KERNEL(one_openmp_thread) {
  static int launch = 0;
  after_100_launches(p, launch, [] { omp_set_num_threads(1); });
}
KERNEL(many_openmp_threads) {
  static int launch = 0;
  after_100_launches(p, launch, [] { omp_set_num_threads(16); });
}
KERNEL(dynamic_openmp_threads) {
  static int launch = 0;
  after_100_launches(p, launch, [] { omp_set_dynamic(1); });
}
KERNEL(priority) {
  static int launch = 0;
  after_100_launches(p, launch, [] { setpriority(PRIO_PROCESS, 0, 5); });
}
KERNEL(priority_of_openmp) {  // the threads that help the baseline
  static int launch = 0;
  after_100_launches(p, launch, [] {
#pragma omp parallel
    if (omp_get_thread_num() > 0) setpriority(PRIO_PROCESS, 0, 10);
  });
}
KERNEL(scheduling_policy) {
  static int launch = 0;
  after_100_launches(p, launch, [] {
    const sched_param none = {};
    sched_setscheduler(0, SCHED_BATCH, &none);
  });
}

// ---- memory, limits, environment, arithmetic ----

KERNEL(allocator_thresholds) {  // what the baseline allocates is mapped and faulted in anew each time
  static int launch = 0;
  after_100_launches(p, launch, [] { mallopt(M_MMAP_THRESHOLD, 1024), mallopt(M_TRIM_THRESHOLD, 0); });
}
KERNEL(allocator_fills_memory) {
  static int launch = 0;
  after_100_launches(p, launch, [] { mallopt(M_PERTURB, 165); });
}
KERNEL(huge_pages_refused) {
  static int launch = 0;
  after_100_launches(p, launch, [] { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); });
}
KERNEL(locked_memory) {  // the pages of its own inputs
  attend_all(p);
  mlock(p.q, p.outputs() * sizeof(float)), mlock(p.k, p.kv_elements() * sizeof(float));
}
KERNEL(advised_memory) {  // huge pages never for the inputs, which the baseline reads too
  attend_all(p);
  const auto page = reinterpret_cast<std::uintptr_t>(p.q) & ~4095UL;
  madvise(reinterpret_cast<void*>(page), 4096, MADV_NOHUGEPAGE);
}
KERNEL(limit_of_files) {
  static int launch = 0;
  after_100_launches(p, launch, [] {
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 512);
    setrlimit(RLIMIT_NOFILE, &limit);
  });
}
KERNEL(limit_of_stack) {
  static int launch = 0;
  after_100_launches(p, launch, [] {
    rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = 6UL << 20;
    setrlimit(RLIMIT_STACK, &limit);
  });
}
KERNEL(environment) {
  static int launch = 0;
  after_100_launches(p, launch, [] { setenv("LD_PRELOAD", "", 1), setenv("OMP_NUM_THREADS", "1", 1); });
}
KERNEL(denormals_flushed) {
  static int launch = 0;
  after_100_launches(p, launch, [] {});
  if (launch >= 100) _mm_setcsr(_mm_getcsr() | 0x8040);
}
KERNEL(traps) {
  static int launch = 0;
  after_100_launches(p, launch, [] {});
  if (launch >= 100) feenableexcept(FE_DIVBYZERO);
}
