// Store: what it says of keys, namespaces and its own past.
#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "core/store/store_impl.h"

namespace infinistore {

namespace {

struct Place {
  NamespaceId space;
  std::string name;
};

// Those that have keys, the last used first.
std::vector<Place> places_to_look(const std::vector<SpaceView>& spaces, std::string_view but) {
  std::vector<std::pair<Nanos, NamespaceId>> order;
  for (std::size_t space = 0; space < spaces.size(); ++space) {
    if (spaces[space].counts.keys == 0 || spaces[space].name == but) continue;
    order.emplace_back(spaces[space].idle.value_or(INT64_MAX), static_cast<NamespaceId>(space));
  }
  std::ranges::sort(order);
  order.resize(std::min(order.size(), kExplainedSpacesMax));
  std::vector<Place> places;
  places.reserve(order.size());
  for (const auto& [idle, space] : order) places.push_back({space, spaces[space].name});
  return places;
}

}  // namespace

std::vector<KeyAnswer> Store::explain(std::string_view space,
                                      std::span<const std::string_view> keys) const {
  const auto all = spaces();
  const auto own = std::ranges::find(all, space, &SpaceView::name);
  const auto others = places_to_look(all, space);
  const Nanos at = now();
  std::vector<KeyAnswer> answers;
  for (const auto key : keys.first(std::min(keys.size(), kExplainedKeysMax))) {
    KeyAnswer& answer = answers.emplace_back();
    if (own != all.end()) {
      const KeyRef ref = ref_of(static_cast<NamespaceId>(own - all.begin()), key);
      answer.story = shard_of(ref.hash).story(ref);
    }
    if (answer.story.state == KeyStory::State::kLeft) {
      answer.ago = std::max<Nanos>(0, at - answer.story.departure.at);
      if (answer.story.departure.reason == Reason::kRoom) {
        answer.pressing = space_name(answer.story.departure.pressing);
      }
    }
    if (answer.story.state != KeyStory::State::kUnknown) continue;
    for (const Place& other : others) {
      if (exists(other.space, key)) answer.elsewhere.push_back(other.name);
    }
  }
  return answers;
}

std::vector<SpaceView> Store::spaces() const {
  const Nanos at = now();
  std::vector<SpaceView> views;
  {
    const MutexLock lock(impl_->names_mutex);
    for (std::size_t space = 0; space < impl_->space_names.size(); ++space) {
      const Nanos used_at = impl_->space_uses[space].at.load(std::memory_order_relaxed);
      SpaceView view{.name = impl_->space_names[space], .counts = {}, .idle = std::nullopt};
      if (used_at != 0) view.idle = std::max<Nanos>(0, at - used_at);
      views.push_back(std::move(view));
    }
  }
  std::vector<SpaceCounts> counts(views.size());
  for (const auto& shard : impl_->shards) shard->add_space_counts(counts);
  for (std::size_t space = 0; space < views.size(); ++space) views[space].counts = counts[space];
  return views;
}

HitCurve::Picture Store::hit_curve(std::span<const std::uint64_t> pool_bytes) const {
  return impl_->curve.picture(pool_bytes);
}

}  // namespace infinistore
