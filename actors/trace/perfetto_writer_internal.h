// Packets of a Perfetto trace, as far as Penstock uses the format: tracks, slices, counters, flows.
// The numbers of fields are those of Perfetto's published schema (protos/perfetto/trace).
//
// Thread rule: one thread.
// Invariant: a name is written once, before it is used; later packets refer to it by its number.

#ifndef PENSTOCK_ACTORS_TRACE_PERFETTO_WRITER_INTERNAL_H_
#define PENSTOCK_ACTORS_TRACE_PERFETTO_WRITER_INTERNAL_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace penstock::actors {

class PerfettoWriter {
 public:
  using Track = uint64_t;  // 0: none; counted from 1
  using Name = uint64_t;   // of slices; 0: none

  struct TrackOptions {
    Track parent = 0;
    std::string_view description = {};
    std::optional<int32_t> process_id = std::nullopt;  // a track of a process
    int32_t rank = 0;                                  // among its siblings
  };

  // Arguments and flows of a slice.
  struct SliceOptions {
    std::optional<int64_t> step = std::nullopt;
    std::optional<int64_t> microbatch = std::nullopt;
    std::optional<double> wait_ms = std::nullopt;
    uint64_t flow = 0;  // 0: none
    bool ends_flow = false;
  };

  enum class Unit : int32_t { kCount = 2, kBytes = 3 };

  // `out` outlives the result, whose destructor writes the rest.
  explicit PerfettoWriter(std::ostream& out) : out_(out) {}
  PerfettoWriter(const PerfettoWriter&) = delete;
  PerfettoWriter& operator=(const PerfettoWriter&) = delete;
  ~PerfettoWriter() { Flush(); }

  Track AddTrack(std::string_view name, const TrackOptions& options);
  Track AddCounter(std::string_view name, Track parent, Unit unit);

  // The same again for a name that is known.
  Name AddName(std::string_view name);

  // REQUIRES: slices of a track follow each other in time.
  void AddSlice(Track track, Name name, int64_t begin_ns, int64_t end_ns,
                const SliceOptions& options);
  void AddCount(Track counter, int64_t at_ns, int64_t value);

 private:
  void Write(std::string_view packet);
  void Flush();

  std::ostream& out_;
  std::string buffer_;  // packets that are not yet written
  uint64_t num_tracks_ = 0;
  bool is_first_ = true;
  absl::flat_hash_map<std::string, Name> names_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_PERFETTO_WRITER_INTERNAL_H_
