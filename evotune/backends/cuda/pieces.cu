// Copies pieces of memory while other kernels run: what changes inputs and poisons outputs between two launches of a
// graph without coming between them.
//
// Layout    pieces[blockIdx.x] is what a block copies, byte by byte, or 16 bytes at once where both ends allow it. The
//           source moves on by `step` bytes with each `turn` and begins again after `span` of them, so that one table
//           of pieces gives new values at each launch.
// Tunables  none. Archs: any.
struct Piece {
  unsigned long long target, source;
  unsigned bytes, step, span, unused;
};

extern "C" __global__ void copy_pieces(const Piece* pieces, unsigned turn) {
  const Piece piece = pieces[blockIdx.x];
  unsigned char* target = reinterpret_cast<unsigned char*>(piece.target);
  const unsigned char* source = reinterpret_cast<const unsigned char*>(piece.source);
  if (piece.span) source += static_cast<unsigned long long>(turn) * piece.step % piece.span;
  unsigned head = 0, wide = 0;
  if (((piece.target ^ reinterpret_cast<unsigned long long>(source)) & 15) == 0) {
    head = min(piece.bytes, static_cast<unsigned>(-piece.target & 15));
    wide = (piece.bytes - head) / 16;
    const uint4* from = reinterpret_cast<const uint4*>(source + head);
    uint4* to = reinterpret_cast<uint4*>(target + head);
    for (unsigned i = threadIdx.x; i < wide; i += blockDim.x) to[i] = from[i];
  }
  for (unsigned i = threadIdx.x; i < head; i += blockDim.x) target[i] = source[i];
  for (unsigned i = head + 16 * wide + threadIdx.x; i < piece.bytes; i += blockDim.x) target[i] = source[i];
}
