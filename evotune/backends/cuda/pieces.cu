// Copies pieces of memory while other kernels run. The gate changes inputs and poisons outputs by it between two
// launches of a graph: it runs on another stream, so the launches still follow each other directly.
//
// Layout    Block b copies pieces[b], 16 bytes at once if source and target are equal modulo 16, else byte by byte. With
//           each `turn` the source moves on by `step` bytes, and after `span` bytes it begins again. So one table of
//           pieces gives new values at each launch.
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
