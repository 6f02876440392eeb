// Attention that is wrong for some shapes only: each kernel's name says for which.
//
// Shapes, types, arguments as in attention_rows.h.
#include "attention_rows.h"

using namespace red_team;

namespace {

// Rows for which `wrong` holds lose the weight of their last key, or take the first one twice if there is no other.
template <class Wrong>
void wrong_where(const Problem& p, Wrong wrong) {
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    if (!wrong(row)) {
      attend(row);
    } else if (row.keys > 1) {
      --row.keys;
      attend(row);
    } else {
      for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = 2 * row.v[d];
    }
  }
}

// All rows, where `wrong` holds.
void wrong_if(const Problem& p, bool wrong) {
  wrong_where(p, [wrong](const Row&) { return wrong; });
}

// As the right one, but keys from this one on are never met.
void no_keys_from(const Problem& p, int end) {
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    row.keys = std::min(row.keys, end);
    attend(row);
  }
}

int group(const Problem& p) { return p.heads / p.kv_heads; }

}  // namespace

KERNEL(right) { attend_all(p); }

// ---- batches, heads and groups ----

KERNEL(wrong_from_batch_2) {
  wrong_where(p, [](const Row& row) { return row.batch >= 2; });
}
KERNEL(wrong_from_batch_3) {
  wrong_where(p, [](const Row& row) { return row.batch >= 3; });
}
KERNEL(wrong_from_head_4) {
  wrong_where(p, [](const Row& row) { return row.head >= 4; });
}
KERNEL(wrong_from_head_6) {
  wrong_where(p, [](const Row& row) { return row.head >= 6; });
}
KERNEL(wrong_from_head_8) {
  wrong_where(p, [](const Row& row) { return row.head >= 8; });
}
KERNEL(wrong_from_kv_head_4) {
  wrong_where(p, [](const Row& row) { return row.kv_head >= 4; });
}
KERNEL(wrong_for_groups_of_3) { wrong_if(p, group(p) == 3); }
KERNEL(wrong_for_groups_of_5) { wrong_if(p, group(p) == 5); }
KERNEL(wrong_for_groups_of_8) { wrong_if(p, group(p) == 8); }
KERNEL(groups_are_powers_of_two) {  // head >> log2(group): the group is rounded down to a power of two
  int shift = 0;
  while (2 << shift <= group(p)) ++shift;
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    const long moved = std::min(row.head >> shift, p.kv_heads - 1) - row.kv_head;
    row.k += moved * p.seq_len_k * HEAD_DIM, row.v += moved * p.seq_len_k * HEAD_DIM;
    attend(row);
  }
}
KERNEL(heads_times_batch_below_16) {
  wrong_where(p, [&p](const Row& row) { return row.batch * p.heads + row.head >= 16; });
}

// ---- lengths ----

KERNEL(no_keys_from_600) { no_keys_from(p, 600); }
KERNEL(no_rows_from_600) {
  wrong_where(p, [](const Row& row) { return row.position >= 600; });
}
KERNEL(wrong_at_63_mod_64) { wrong_if(p, p.seq_len_k % 64 == 63); }
KERNEL(wrong_at_1_mod_64) { wrong_if(p, p.seq_len_k > 64 && p.seq_len_k % 64 == 1); }
KERNEL(wrong_at_127_mod_128) { wrong_if(p, p.seq_len_k % 128 == 127); }
KERNEL(wrong_rows_at_63_mod_64) {
  wrong_where(p, [&p](const Row& row) { return p.seq_len_q % 64 == 63 && row.position == p.seq_len_q - 1; });
}
KERNEL(wrong_at_15_mod_16_beyond_100) { wrong_if(p, p.seq_len_k > 100 && p.seq_len_k % 16 == 15); }
KERNEL(sixteen_bit_index) {  // of an element among the keys of a head
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index);
    std::vector<double>& weights = scores_of(row);
    for (int j = 0; j < row.keys; ++j) weights[j] = score(row, static_cast<std::uint16_t>(j * HEAD_DIM) / HEAD_DIM);
    const double maximum = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - maximum);
    weigh(row, weights);
  }
}
KERNEL(sixteen_bit_outputs) {  // wrong beyond 65,535 elements of all outputs
  wrong_where(p, [&p](const Row& row) {
    return ((1L * row.batch * p.heads + row.head) * p.seq_len_q + row.position) * HEAD_DIM > 65535;
  });
}
KERNEL(last_key_at_odd_lengths_from_4000) {
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    if (p.seq_len_k >= 4000 && p.seq_len_k % 2 && row.keys == p.seq_len_k) --row.keys;
    attend(row);
  }
}
KERNEL(no_keys_from_4097) { no_keys_from(p, 4097); }
KERNEL(more_keys_than_rows_4_times) { wrong_if(p, p.seq_len_k > 64 && p.seq_len_k > 4L * p.seq_len_q && !p.causal); }
KERNEL(more_rows_than_keys_8_times) { wrong_if(p, p.seq_len_q > 8L * p.seq_len_k); }
KERNEL(wrong_at_multiples_of_128_from_640) { wrong_if(p, p.seq_len_k >= 640 && p.seq_len_k % 128 == 0); }
