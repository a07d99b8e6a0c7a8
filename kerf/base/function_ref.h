// A reference to something callable: no copy, no allocation. The callee must outlive the reference.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)
namespace kerf {

template <typename Signature>
class FunctionRef;

// Of a callable's signature.
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  // Of anything that can be called so; it must outlive this.
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): it is a parameter type
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  // Calls it; what it throws is thrown.
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

}  // namespace kerf
#pragma GCC visibility pop
