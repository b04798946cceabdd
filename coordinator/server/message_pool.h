// Request and response messages of a callback method, used again and again so that their buffers are not allocated
// anew.
#ifndef KVMESH_COORDINATOR_SERVER_MESSAGE_POOL_H_
#define KVMESH_COORDINATOR_SERVER_MESSAGE_POOL_H_

#include <grpcpp/support/message_allocator.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kvstore/base/mutex.h"

namespace kvmesh {

// Keeps at most `capacity` pairs; `keep` says of a finished pair whether its memory is worth keeping. Thread safe; must
// outlive the server.
template <class Request, class Response>
class MessagePool final : public grpc::MessageAllocator<Request, Response> {
 public:
  using Keep = std::function<bool(const Request&, const Response&)>;

  MessagePool(size_t capacity, Keep keep) : capacity_(capacity), keep_(std::move(keep)) {}

  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    {
      MutexLock lock(mu_);
      if (!free_.empty()) {
        Holder* holder = free_.back().release();
        free_.pop_back();
        return holder;
      }
    }
    return new Holder(*this);
  }

 private:
  struct Holder final : grpc::MessageHolder<Request, Response> {
    explicit Holder(MessagePool& pool) : pool(pool) {
      this->set_request(&request);
      this->set_response(&response);
    }
    void Release() override { pool.Recycle(std::unique_ptr<Holder>(this)); }

    MessagePool& pool;
    Request request;
    Response response;
  };

  void Recycle(std::unique_ptr<Holder> holder) {
    if (!keep_(holder->request, holder->response)) return;
    holder->request.Clear();
    holder->response.Clear();
    MutexLock lock(mu_);
    if (free_.size() < capacity_) free_.push_back(std::move(holder));
  }

  const size_t capacity_;
  const Keep keep_;
  Mutex mu_;
  std::vector<std::unique_ptr<Holder>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_MESSAGE_POOL_H_
