// Deliberate faults that the sanitizers must report: one function each, called by name.
#include <thread>

#define FAULT extern "C" __attribute__((visibility("default")))

FAULT int read_beyond(int count) {
  volatile int* numbers = new int[count]();
  return numbers[count];
}

FAULT int overflow(int count) { return 2147483647 + count; }

FAULT int race(int count) {
  int shared = 0;
  const auto add = [&] {
    for (int n = 0; n < count; ++n) ++*static_cast<volatile int*>(&shared);
  };
  std::thread other(add);
  add();
  other.join();
  return shared;
}
