// Stand-in for the header of Gloo that libtorch does not ship: declarations of what libtorch_cpu.so defines.
#pragma once

#include <chrono>
#include <memory>

#include <gloo/transport/device.h>

namespace gloo {

class Context {
 public:
  std::unique_ptr<transport::Pair>& getPair(int rank);
  void setTimeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds getTimeout() const;
};

} // namespace gloo
