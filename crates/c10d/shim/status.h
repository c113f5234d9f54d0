// How every entry point answers: a kind, and a text if it failed. No exception leaves the shim.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include <torch/csrc/distributed/c10d/exception.h>

namespace shim {

// Numbered as `Kind` in src/ffi.rs.
enum Kind : int32_t { kOk = 0, kTimeout = 1, kNetwork = 2, kInvalid = 3, kOther = 4 };

inline int32_t report(char** message, Kind kind, const char* text) noexcept {
  *message = strdup(text);
  return kind;
}

template <typename Body>
int32_t guarded(char** message, Body&& body) noexcept {
  *message = nullptr;
  try {
    body();
    return kOk;
  } catch (const c10d::TimeoutError& error) {
    return report(message, kTimeout, error.what_without_backtrace());
  } catch (const c10::DistNetworkError& error) {
    return report(message, kNetwork, error.what_without_backtrace());
  } catch (const c10::DistError& error) {
    return report(message, kOther, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return report(message, kInvalid, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return report(message, kInvalid, error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    return report(message, kInvalid, error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    return report(message, kInvalid, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return report(message, kOther, error.what_without_backtrace());
  } catch (const std::invalid_argument& error) {
    return report(message, kInvalid, error.what());
  } catch (const std::exception& error) {
    return report(message, kOther, error.what());
  } catch (...) {
    return report(message, kOther, "an exception of unknown type");
  }
}

// For destructors: nobody can be told.
template <typename Body>
void quietly(Body&& body) noexcept {
  try {
    body();
  } catch (...) {
  }
}

} // namespace shim
