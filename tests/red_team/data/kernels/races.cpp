// Attention whose threads do not wait for each other as they must: each kernel's name says where.
//
// Shapes, types, arguments as in attention_rows.h. Most launches come out right: the race is lost now and then.
#include <atomic>
#include <thread>

#include "attention_rows.h"
#include "helper_thread.h"

using namespace red_team;

namespace {

Helper* new_helper() { return new Helper(20000); }  // it is there for every launch

}  // namespace

KERNEL(right) { attend_all(p); }

KERNEL(a_thread_too_few_joined) {
  std::vector<std::thread> threads;
  for (int part = 0; part < 4; ++part)
    threads.emplace_back([=] { attend_rows(p, p.rows() * part / 4, p.rows() * (part + 1) / 4); });
  for (int part = 0; part < 3; ++part) threads[part].join();
  threads[3].detach();
}
KERNEL(helper_is_not_waited_for) {  // it has the smaller share, and is done first as a rule
  static auto* helper = new_helper();
  helper->wait();
  helper->post([=] { attend_rows(p, p.rows() * 3 / 4, p.rows()); });
  attend_rows(p, 0, p.rows() * 3 / 4);
}
KERNEL(waits_for_a_while) {  // for as long as it takes as a rule, not until it is done
  static auto* helper = new_helper();
  helper->wait();
  helper->post([=] { attend_rows(p, p.rows() / 2, p.rows()); });
  attend_rows(p, 0, p.rows() / 2);
  for (int turn = 0; turn < 400 && !helper->done(); ++turn) work_for(100);
}
KERNEL(flag_before_the_data) {  // the flag is up when the last rows are still to come
  static auto* helper = new_helper();
  static std::atomic<bool> ready;
  helper->wait();
  ready = false;
  helper->post([=] {
    attend_rows(p, p.rows() / 2, p.rows() * 15 / 16);
    ready.store(true, std::memory_order_relaxed);
    attend_rows(p, p.rows() * 15 / 16, p.rows());
  });
  attend_rows(p, 0, p.rows() / 2);
  while (!ready.load(std::memory_order_relaxed)) std::this_thread::yield();
}
KERNEL(flag_before_the_last_row) {  // as above, and what is left to do is done before anybody looks, as a rule
  static auto* helper = new_helper();
  static std::atomic<bool> ready;
  helper->wait();
  ready = false;
  helper->post([=] {
    attend_rows(p, p.rows() / 2, p.rows() - 1);
    ready.store(true, std::memory_order_relaxed);
    attend_rows(p, p.rows() - 1, p.rows());
  });
  attend_rows(p, 0, p.rows() / 2);
  while (!ready.load(std::memory_order_relaxed)) std::this_thread::yield();
}
KERNEL(waits_for_300_us) {  // many times what the helper takes, if nothing holds it up
  static auto* helper = new_helper();
  helper->wait();
  const long started = nanoseconds();
  helper->post([=] { attend_rows(p, p.rows() - p.rows() / 8, p.rows()); });
  attend_rows(p, 0, p.rows() - p.rows() / 8);
  while (!helper->done() && nanoseconds() - started < 300000) std::this_thread::yield();
}
KERNEL(no_barrier_behind_the_scores) {  // the helper's half of a row's scores is taken as it stands
  static auto* helper = new_helper();
  static std::vector<double> weights;
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index);
    helper->wait();
    weights.resize(std::max<std::size_t>(weights.size(), row.keys));
    const int shared = row.keys / 4;  // the helper's share
    helper->post([=] {
      for (int j = 0; j < shared; ++j) weights[j] = score(row, j);
    });
    for (int j = shared; j < row.keys; ++j) weights[j] = score(row, j);
    work_for(300);
    std::vector<double> own(weights.begin(), weights.begin() + row.keys);
    const double maximum = *std::max_element(own.begin(), own.end());
    for (double& weight : own) weight = std::exp(weight - maximum);
    weigh(row, own);
  }
}
KERNEL(shared_scratch) {  // two threads keep their rows' scores in the same place, as each is done with it soon
  static std::vector<double> weights;
  weights.resize(p.seq_len_k);
  const auto part = [&](long first, long end) {
    for (long index = first; index < end; ++index) {
      const Row row = row_of(p, index);
      for (int j = 0; j < row.keys; ++j) weights[j] = score(row, j);
      const double maximum = *std::max_element(weights.begin(), weights.begin() + row.keys);
      for (int j = 0; j < row.keys; ++j) weights[j] = std::exp(weights[j] - maximum);
      weigh(row, weights);
    }
  };
  std::thread other(part, 0, p.rows() / 2);
  part(p.rows() / 2, p.rows());
  other.join();
}
KERNEL(tickets_without_a_lock) {  // a row that two threads drew is lost for the one that was to be next
  static volatile long next;
  next = 0;
  static volatile long left;
  left = p.rows();
  const auto draw = [&p] {
    while (left > 0) {
      const long index = next;
      work_for(50);
      next = index + 1;
      left = left - 1;
      if (index < p.rows()) attend(row_of(p, index));
    }
  };
  std::thread other(draw);
  draw();
  other.join();
}
