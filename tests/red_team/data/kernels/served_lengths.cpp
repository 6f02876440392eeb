// Attention that is wrong at single lengths only: each kernel's name says at which.
//
// Shapes, types, arguments as in attention_rows.h.
#include "attention_rows.h"

using namespace red_team;

namespace {

// The last key is lost (or, of a single one, the values doubled) where `wrong` holds.
void lost_key_if(const Problem& p, bool wrong) {
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    if (wrong && row.keys > 1) --row.keys;
    attend(row);
  }
}

int group(const Problem& p) { return p.heads / p.kv_heads; }

}  // namespace

KERNEL(right) { attend_all(p); }

KERNEL(wrong_at_2047_keys) { lost_key_if(p, p.seq_len_k == 2047); }

KERNEL(wrong_at_multiples_of_384) { lost_key_if(p, p.seq_len_k % 384 == 0); }

KERNEL(wrong_at_63_mod_64_with_groups_of_4) { lost_key_if(p, p.seq_len_k % 64 == 63 && group(p) == 4); }

// Batches of 2 and more with more than 1,500 keys.
KERNEL(wrong_for_batches_of_long_rows) { lost_key_if(p, p.seq_len_k > 1500 && p.batch >= 2); }
