// Errors, and how torch raises them. The library and torch may have different C++ runtimes, because a wheel of the
// library contains its own. Exceptions must not pass from one to the other. So the library catches its exceptions here,
// and torch throws a new one.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace qacg {

inline void append(std::string& to, const char* text) { to += text; }
inline void append(std::string& to, const std::string& text) { to += text; }
inline void append(std::string& to, int64_t number) { to += std::to_string(number); }

// Throws an error whose message joins texts and whole numbers.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string message;
  (append(message, parts), ...);
  throw std::runtime_error(message);
}

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) refuse(parts...);
}

using Boxed = void(StableIValue*, uint64_t, uint64_t);

constexpr size_t kLongestMessage = 1024;

// Runs an operator. Returns whether it failed; `message` then contains the reason.
template <Boxed* run>
__attribute__((noinline)) bool fails(StableIValue* stack, uint64_t inputs, uint64_t outputs, char* message) noexcept {
  try {
    run(stack, inputs, outputs);
    return false;
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), kLongestMessage - 1);
  } catch (...) {
    std::strncpy(message, "quasi-attention: got an exception that is no std::exception", kLongestMessage - 1);
  }
  return true;
}

// The function that torch calls for an operator. The exception that aoti_torch_check throws passes through it, so it
// has no local object with a destructor.
template <Boxed* run>
void guarded(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  char message[kLongestMessage] = {};
  if (fails<run>(stack, inputs, outputs, message)) aoti_torch_check(false, "qacg", __FILE__, __LINE__, message);
}

}  // namespace qacg
