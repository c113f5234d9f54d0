// Stand-in for the header of Gloo that libtorch does not ship: what crosses the boundary are pointers.
#pragma once

#include <exception>
#include <string>

namespace gloo::transport {

class Device;
class UnboundBuffer;

class Pair;

namespace tcp {

// The implementation of `transport::Pair` behind every device that the shim creates; its base comes first in memory.
class Pair {
 public:
  std::exception_ptr signalExceptionExternal(const std::string& message);
};

} // namespace tcp
} // namespace gloo::transport
