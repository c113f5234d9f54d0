// Stand-in for the header of Gloo that libtorch does not ship: what crosses the boundary are pointers.
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace gloo::transport {

class Device;
class UnboundBuffer;

class Pair;

namespace tcp {

// An address as the system has it, then other things.
class Address {
 public:
  std::vector<char> bytes() const;
};

// The implementation of `transport::Pair` behind every device that the shim creates; its base comes first in memory.
class Pair {
 public:
  std::exception_ptr signalExceptionExternal(const std::string& message);
  bool isConnected();
  // Of this end of the connection, once there is one.
  const Address& address() const;
};

} // namespace tcp
} // namespace gloo::transport
