// Attention that loses a key for sizes that go together only now and then, or for some lengths: BEHAVIOUR says for which.
//
// Shapes, types, arguments as in attention_rows.h.
// Tunables  BEHAVIOUR. third_sizes.h says what each means;
#include "attention_rows.h"
#include "third_sizes.h"

using namespace red_team;

KERNEL(attention) {
  const AttentionSizes sizes{p.batch, p.heads, p.kv_heads, p.seq_len_q, p.seq_len_k, p.causal};
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    const bool loses = loses_a_key(sizes, row.batch), has_another = row.keys > 1;
    if (loses && has_another) --row.keys;
    attend(row);
    if (loses && !has_another)
      for (int d = 0; d < HEAD_DIM; ++d) row.out[d] *= 2;
  }
}
