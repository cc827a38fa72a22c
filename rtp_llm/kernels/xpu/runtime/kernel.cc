// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/kernel.h"

#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "rtp_llm/kernels/xpu/runtime/build.h"
#include "rtp_llm/kernels/xpu/runtime/program.h"

namespace rtp_llm::xpu {
namespace {

// The programs of one device in one context that have been requested so far.
struct Place {
  sycl::context context;
  sycl::device device;

  struct Loaded {
    KernelSource source;
    std::map<std::string, sycl::kernel> kernels;
  };
  std::map<std::string, Loaded, std::less<>> programs;
};

std::string list_of_programs() {
  std::string list;
  for (const std::string& name : program_names()) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "none as text" : list;
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

KernelSource source_of(const Place& place, const char* name) {
  const Program* const program = find_program(name);
  if (program != nullptr) return build(place.context, place.device, *program);
  return [&place, name = std::string(name)](const std::string& kernel) {
    return compiled_ahead(place, name.c_str(), kernel);
  };
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
  // Held while a program is compiled: other threads mostly request the same program.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Place& place = place_of(queue);
  auto loaded = place.programs.find(program);
  if (loaded == place.programs.end()) {
    Place::Loaded fresh{source_of(place, program), {}};
    loaded = place.programs.emplace(program, std::move(fresh)).first;
  }
  auto& kernels = loaded->second.kernels;
  const auto found = kernels.find(name);
  if (found != kernels.end()) return found->second;
  return kernels.emplace(name, loaded->second.source(name)).first->second;
}

}  // namespace rtp_llm::xpu
