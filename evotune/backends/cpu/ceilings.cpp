// Loops that reach one ceiling of a processor each, in all threads of OpenMP: float32 FMAs, loads from L2, copies through
// memory, and an empty parallel region.
//
// Every function returns a rate a second (or the seconds of a region), the best of RUNS runs.
//
// Tunables   SIMD_BYTES  the width of a vector
#include <omp.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

typedef float Vector __attribute__((vector_size(SIMD_BYTES)));

namespace {

constexpr int CHAINS = 12;  // more than latency x throughput of an FMA
constexpr int RUNS = 20;
constexpr int LANES = SIMD_BYTES / sizeof(float);

volatile float kept;  // results are stored here, so that no loop is left out

template <typename Function>
double shortest(Function run) {
  double best = 1e30;
  for (int i = 0; i < RUNS; ++i) {
    const double begin = omp_get_wtime();
    run();
    const double seconds = omp_get_wtime() - begin;
    if (seconds < best) best = seconds;
  }
  return best;
}

Vector all(float value) {
  Vector x;
  for (int i = 0; i < LANES; ++i) x[i] = value;
  return x;
}

float sum_of(Vector x) {
  float sum = 0;
  for (int i = 0; i < LANES; ++i) sum += x[i];
  return sum;
}

// The sum over all threads of the highest rate that each one reaches while the others work too. `prepare` gives each
// thread a function that does some work and returns its amount.
template <typename Prepare>
double sum_of_threads(Prepare prepare) {
  double sum = 0;
#pragma omp parallel reduction(+ : sum)
  {
    const auto run = prepare();
    double best = 0;
#pragma omp barrier
    for (int i = 0; i < RUNS; ++i) {
      const double begin = omp_get_wtime();
      const double work = run();
      const double rate = work / (omp_get_wtime() - begin);
      if (rate > best) best = rate;
    }
    sum += best;
  }
  return sum;
}

}  // namespace

// FLOPs a second: each thread makes `rounds` x CHAINS FMAs of vectors in a run.
extern "C" double fma_rate(long rounds) {
  return sum_of_threads([=] {
    return [=] {
      const Vector factor = all(0.999f), term = all(0.001f);
      // Single variables: GCC keeps an array of vectors in memory. None starts with 1, which would stay 1.
      Vector a = all(13), b = all(2), c = all(3), d = all(4), e = all(5), f = all(6);
      Vector g = all(7), h = all(8), i = all(9), j = all(10), k = all(11), l = all(12);
      for (long round = 0; round < rounds; ++round) {
        a = a * factor + term, b = b * factor + term, c = c * factor + term, d = d * factor + term;
        e = e * factor + term, f = f * factor + term, g = g * factor + term, h = h * factor + term;
        i = i * factor + term, j = j * factor + term, k = k * factor + term, l = l * factor + term;
      }
      kept = sum_of(a + b + c + d + e + f + g + h + i + j + k + l);
      return 2.0 * LANES * CHAINS * rounds;
    };
  });
}

// Bytes a second: each thread reads `bytes` of its own `rounds` times in a run.
extern "C" double read_rate(long bytes, long rounds) {
  const long count = bytes / sizeof(Vector) / 4 * 4;
  return sum_of_threads([=] {
    Vector* values = static_cast<Vector*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
    if (values != nullptr) std::memset(values, 0, bytes);
    std::shared_ptr<Vector> owner(values, std::free);
    return [=] {
      const Vector* from = owner.get();
      if (from == nullptr) return 0.0;
      Vector a = all(0), b = a, c = a, d = a;
      for (long round = 0; round < rounds; ++round)
        for (long i = 0; i < count; i += 4) a += from[i], b += from[i + 1], c += from[i + 2], d += from[i + 3];
      kept = sum_of(a + b + c + d);
      return static_cast<double>(count) * sizeof(Vector) * rounds;
    };
  });
}

// Bytes read plus bytes written a second: the threads together copy `bytes`. 0 where memory is short.
extern "C" double copy_rate(long bytes) {
  char* from = static_cast<char*>(std::malloc(bytes));
  char* to = static_cast<char*>(std::malloc(bytes));
  double rate = 0;
  if (from != nullptr && to != nullptr) {
    const auto each_part = [&](auto part) {
#pragma omp parallel
      {
        const long size = bytes / omp_get_num_threads(), begin = size * omp_get_thread_num();
        part(begin, size);
      }
    };
    // The first touch of a page decides where it lies.
    each_part([&](long begin, long size) { std::memset(from + begin, 1, size), std::memset(to + begin, 2, size); });
    rate = 2.0 * bytes / shortest([&] {
             each_part([&](long begin, long size) { std::memcpy(to + begin, from + begin, size); });
           });
    kept = to[bytes / 2];
  }
  std::free(from);
  std::free(to);
  return rate;
}

// Seconds of an empty parallel region.
extern "C" double region_seconds(long count) {
  return shortest([&] {
           for (long i = 0; i < count; ++i) {
#pragma omp parallel
             asm volatile("" ::: "memory");
           }
         }) /
         count;
}
