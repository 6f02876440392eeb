// counts[b] += how often b is among the n keys; right, or wrong as BEHAVIOUR says.
#include <cstdint>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

#if defined(BEHAVIOUR) && BEHAVIOUR == BEHAVIOUR_COUNTS_IN_8_BITS
using Count = std::uint8_t;
#elif defined(BEHAVIOUR) && BEHAVIOUR == BEHAVIOUR_COUNTS_IN_16_BITS
using Count = std::uint16_t;
#else
using Count = std::uint32_t;
#endif

extern "C" void histogram(const std::int16_t* keys, std::int32_t* counts, int n, int bins) {
  static std::vector<std::int32_t> last;
  const int parts = IS(BY_PARTS) ? 4 : 1, used = IS(NO_LAST_BIN) && bins > 1 ? bins - 1 : bins;
  std::vector<Count> own(static_cast<long>(parts) * bins);
  for (int i = 0; i < n - IS(LOSES_THE_LAST); ++i) ++own[static_cast<long>(i % parts) * bins + keys[i]];
  const bool adds_to_last = IS(ADDS_TO_THE_LAUNCH_BEFORE) && static_cast<int>(last.size()) == bins;
  for (int bin = 0; bin < used; ++bin) {
    std::int32_t sum = IS(STARTS_AT_ZERO) ? 0 : adds_to_last ? last[bin] : counts[bin];
    for (int part = 0; part < parts; ++part) sum += own[static_cast<long>(part) * bins + bin] * (IS(TWICE) ? 2 : 1);
    counts[bin] = IS(SUMS_IN_FLOAT) ? static_cast<std::int32_t>(static_cast<float>(sum)) : sum;
  }
  if (IS(ADDS_TO_THE_LAUNCH_BEFORE)) last.assign(counts, counts + bins);
  if (IS(ONE_BEHIND)) ++counts[bins];
}
