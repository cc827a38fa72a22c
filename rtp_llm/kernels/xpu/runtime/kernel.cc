// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/kernel.h"

#include <list>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "rtp_llm/kernels/xpu/runtime/load.h"
#include "rtp_llm/kernels/xpu/runtime/program.h"

namespace rtp_llm::xpu {
namespace {

// The kernels of one device in one context that have been requested so far, by program and name.
struct Place {
  sycl::context context;
  sycl::device device;
  std::map<std::pair<std::string, std::string>, sycl::kernel> kernels;
};

std::string list_of_programs() {
  std::string list;
  for (const std::string& name : program_names()) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "none as SPIR-V" : list;
}

// Kernels that icpx compiled are known to libsycl by name, whichever file they come from.
sycl::kernel compiled_ahead(const Place& place, const char* program, const std::string& name) {
  for (const sycl::kernel_id& id : sycl::get_kernel_ids()) {
    if (id.get_name() == kKernelPrefix + name) {
      return sycl::get_kernel_bundle<sycl::bundle_state::executable>(place.context, {place.device},
                                                                     {id})
          .get_kernel(id);
    }
  }
  throw std::runtime_error(std::string("no SYCL program ") + program + " with a kernel " + name +
                           ": the library has these programs: " + list_of_programs() +
                           ", and no kernel of this name that was compiled ahead of time");
}

sycl::kernel find_kernel(const Place& place, const char* name, const std::string& kernel) {
  const Program* const program = find_program(name);
  if (program == nullptr) return compiled_ahead(place, name, kernel);
  return load(place.context, place.device, *program, kernel);
}

// A list, for places stay where they are; never destroyed, for at exit the devices go first.
Place& place_of(const sycl::queue& queue) {
  static auto& places = *new std::list<Place>;
  for (Place& place : places) {
    if (place.context == queue.get_context() && place.device == queue.get_device()) return place;
  }
  return places.emplace_back(Place{queue.get_context(), queue.get_device(), {}});
}

}  // namespace

const sycl::kernel& kernel(const sycl::queue& queue, const char* program, const std::string& name) {
  // Held while a kernel is loaded: other threads mostly request the same one.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Place& place = place_of(queue);
  const std::pair key(std::string(program), name);
  const auto found = place.kernels.find(key);
  if (found != place.kernels.end()) return found->second;
  return place.kernels.emplace(key, find_kernel(place, program, name)).first->second;
}

}  // namespace rtp_llm::xpu
