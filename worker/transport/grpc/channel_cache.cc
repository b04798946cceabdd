#include "worker/transport/grpc/channel_cache.h"

#include <iterator>
#include <utility>

#include "kvstore/base/check.h"

namespace kvmesh {

ChannelCache::ChannelCache(ChannelFactory make_channel, size_t capacity)
    : make_channel_(std::move(make_channel)), capacity_(capacity) {
  KVMESH_CHECK(capacity >= 1, "a cache of no channels");
}

std::shared_ptr<PeerChannel> ChannelCache::Get(const std::string& address) {
  std::list<Entry> evicted;  // closed after the lock is released
  MutexLock lock(mu_);
  if (const auto found = by_address_.find(address); found != by_address_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front().peer;
  }
  if (entries_.size() == capacity_) {
    by_address_.erase(entries_.back().address);
    evicted.splice(evicted.begin(), entries_, std::prev(entries_.end()));
  }
  entries_.push_front({address, std::make_shared<PeerChannel>(make_channel_(address))});
  by_address_[address] = entries_.begin();
  return entries_.front().peer;
}

void ChannelCache::Forget(const std::string& address, const std::shared_ptr<PeerChannel>& peer) {
  std::list<Entry> forgotten;  // closed after the lock is released
  MutexLock lock(mu_);
  const auto found = by_address_.find(address);
  if (found == by_address_.end() || found->second->peer != peer) return;
  forgotten.splice(forgotten.begin(), entries_, found->second);
  by_address_.erase(found);
}

size_t ChannelCache::size() const {
  MutexLock lock(mu_);
  return entries_.size();
}

}  // namespace kvmesh
