/* <cub/cub.cuh>, which CUB refuses under NVRTC, without the algorithms for whole devices, which host functions call.
 * These headers include the other ones of cub/block, cub/warp and cub/thread. */
#pragma once

#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/iterator/cache_modified_output_iterator.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_store.cuh>
