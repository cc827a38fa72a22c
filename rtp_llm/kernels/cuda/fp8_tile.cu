#include "rtp_llm/kernels/cuda/fp8_kernels.h"
#include "rtp_llm/kernels/cuda/fp8_launch.h"

namespace rtp_llm::cuda {
namespace {

using Wide = TileShape<2, 4>;    // 256 rows
using Narrow = TileShape<1, 6>;  // 128 rows

constexpr int64_t kNarrowRows = 128;  // up to so many tiles of 256 rows would be half empty

}  // namespace

void fp8_tiles(const Fp8GemmArgs& args, int sms, void* stream) {
  const int grid = sms < 2 ? 2 : sms / 2 * 2;  // clusters of two blocks
  switch (args.form) {
    case Fp8Form::kPlain:
      return args.rows > kNarrowRows ? launch_tile<Wide, Fp8Form::kPlain>(args, grid, stream)
                                     : launch_tile<Narrow, Fp8Form::kPlain>(args, grid, stream);
    case Fp8Form::kMasked:
      return launch_tile<Narrow, Fp8Form::kMasked>(args, grid, stream);
    case Fp8Form::kContiguous:
      return launch_tile<Narrow, Fp8Form::kContiguous>(args, grid, stream);
    case Fp8Form::kRagged:
      return launch_tile<Narrow, Fp8Form::kRagged>(args, grid, stream);
  }
}

}  // namespace rtp_llm::cuda
