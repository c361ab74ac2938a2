// Columns of the tables in a plan file (plan.capnp): what writing and reading them share.
//
// Thread rule: one thread an object.

#ifndef PENSTOCK_PLANNER_PLAN_PLAN_COLUMNS_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_PLAN_COLUMNS_INTERNAL_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan.capnp.h"
#include "planner/plan/plan.h"

namespace penstock::planner::internal {

inline constexpr size_t kMaxStringBytes = 4096;  // a file cannot make a reader repeat long strings
inline constexpr int kMaxAttributeDepth = 8;

enum AttributeKind : uint8_t { kInt, kDouble, kBool, kString, kDType, kList };

template <typename T>
kj::ArrayPtr<const T> Pointer(const std::vector<T>& values) {
  return kj::ArrayPtr<const T>(values.data(), values.size());
}

template <typename Enum>
uint8_t Code(Enum value) {
  return static_cast<uint8_t>(value);
}

inline uint32_t RowCount(size_t count) { return static_cast<uint32_t>(count); }

class StringWriter {
 public:
  uint32_t Add(std::string_view text) {
    if (text.size() > kMaxStringBytes && too_long_.empty()) too_long_ = text.substr(0, 64);
    const auto [it, is_new] = ids_.try_emplace(text, RowCount(ends_.size()));
    if (is_new) {
      text_.append(text);
      ends_.push_back(RowCount(text_.size()));
    }
    return it->second;
  }

  absl::Status Write(schema::Strings::Builder out) const {
    if (!too_long_.empty()) {
      return absl::InvalidArgumentError(
          StrCat("the string '", too_long_, "...' is longer than ", kMaxStringBytes, " bytes"));
    }
    out.setText(kj::ArrayPtr<const capnp::byte>(reinterpret_cast<const capnp::byte*>(text_.data()),
                                                text_.size()));
    out.setEnds(Pointer(ends_));
    return absl::OkStatus();
  }

 private:
  absl::flat_hash_map<std::string_view, uint32_t> ids_;  // the keys are the plan's own strings
  std::string text_;
  std::vector<uint32_t> ends_;
  std::string too_long_;
};

struct TypeWriter {
  std::vector<uint8_t> dtypes, ranks;
  std::vector<int64_t> extents;

  void Add(const TensorType& type) {
    dtypes.push_back(Code(type.dtype));
    ranks.push_back(static_cast<uint8_t>(type.shape.size()));
    extents.insert(extents.end(), type.shape.begin(), type.shape.end());
  }
  void Write(schema::Types::Builder out) const {
    out.setDtypes(Pointer(dtypes));
    out.setRanks(Pointer(ranks));
    out.setExtents(Pointer(extents));
  }
};

struct TileWriter {
  std::vector<uint8_t> dtypes, are_bound, ranks;
  std::vector<int64_t> extents;

  void Add(const TilePlan& tile) {
    dtypes.push_back(Code(tile.dtype));
    are_bound.push_back(tile.is_bound ? 1 : 0);
    for (const Shape* shape : {&tile.shape, &tile.global, &tile.offset, &tile.microbatch_stride}) {
      ranks.push_back(static_cast<uint8_t>(shape->size()));
      extents.insert(extents.end(), shape->begin(), shape->end());
    }
  }
  void Write(schema::Tiles::Builder out) const {
    out.setDtypes(Pointer(dtypes));
    out.setAreBound(Pointer(are_bound));
    out.setRanks(Pointer(ranks));
    out.setExtents(Pointer(extents));
  }
};

// A column that is read from its beginning to its end.
template <typename T>
class Run {
 public:
  explicit Run(typename capnp::List<T>::Reader values) : values_(values) {}
  bool Has(uint64_t count) const { return count <= values_.size() - next_; }
  bool is_done() const { return next_ == values_.size(); }
  T Next() { return values_[next_++]; }  // REQUIRES: Has(1).

 private:
  typename capnp::List<T>::Reader values_;
  uint32_t next_ = 0;
};

inline absl::Status Malformed(std::string_view table, std::string_view what) {
  return absl::DataLossError(StrCat("table ", table, ": ", what));
}

// One length for all columns of a table.
inline absl::StatusOr<uint32_t> NumRows(std::string_view table,
                                        std::initializer_list<uint32_t> sizes) {
  for (const uint32_t size : sizes) {
    if (size != *sizes.begin()) {
      return Malformed(table,
                       StrCat("a column has ", size, " rows, the first has ", *sizes.begin()));
    }
  }
  return *sizes.begin();
}

template <typename Enum>
absl::Status ReadEnum(std::string_view table, uint8_t code, Enum last, Enum* value) {
  if (code > Code(last)) {
    return Malformed(table, StrCat("unknown code ", code, " where the last is ", Code(last)));
  }
  *value = static_cast<Enum>(code);
  return absl::OkStatus();
}

inline absl::Status ReadBool(std::string_view table, uint8_t code, bool* value) {
  if (code > 1) return Malformed(table, StrCat("a yes-or-no column holds ", code));
  *value = code == 1;
  return absl::OkStatus();
}

inline constexpr DType kLastDType = static_cast<DType>(kNumDTypes - 1);

class StringReader {
 public:
  absl::Status Read(schema::Strings::Reader in) {
    const auto text = in.getText();
    const auto ends = in.getEnds();
    uint32_t begin = 0;
    strings_.reserve(ends.size());
    for (const uint32_t end : ends) {
      if (end < begin || end > text.size() || end - begin > kMaxStringBytes) {
        return Malformed("strings", StrCat("string ", strings_.size(), " is from ", begin, " to ",
                                           end, " of ", text.size(), " bytes"));
      }
      strings_.emplace_back(reinterpret_cast<const char*>(text.begin()) + begin, end - begin);
      begin = end;
    }
    return absl::OkStatus();
  }

  absl::Status Get(std::string_view table, uint64_t index, std::string* text) const {
    if (index >= strings_.size()) {
      return Malformed(table, StrCat("names string ", index, " of ", strings_.size()));
    }
    text->assign(strings_[index]);
    return absl::OkStatus();
  }

 private:
  std::vector<std::string_view> strings_;
};

inline absl::Status ReadShape(std::string_view table, Run<uint8_t>* ranks, Run<int64_t>* extents,
                              Shape* shape) {
  if (!ranks->Has(1)) return Malformed(table, "too few ranks");
  const int rank = ranks->Next();
  if (rank > kMaxRank) {
    return Malformed(table, StrCat("rank ", rank, " is above the limit of ", kMaxRank));
  }
  if (!extents->Has(rank)) return Malformed(table, "too few extents");
  shape->reserve(rank);
  for (int i = 0; i < rank; ++i) shape->push_back(extents->Next());
  return absl::OkStatus();
}

class TypeReader {
 public:
  explicit TypeReader(schema::Types::Reader in)
      : dtypes_(in.getDtypes()), ranks_(in.getRanks()), extents_(in.getExtents()) {}

  absl::Status Next(TensorType* type) {
    if (!dtypes_.Has(1)) return Malformed("types", "too few rows");
    RETURN_IF_ERROR(ReadEnum("types", dtypes_.Next(), kLastDType, &type->dtype));
    return ReadShape("types", &ranks_, &extents_, &type->shape);
  }
  absl::Status Finish() const {
    if (dtypes_.is_done() && ranks_.is_done() && extents_.is_done()) return absl::OkStatus();
    return Malformed("types", "more entries than are used");
  }

 private:
  Run<uint8_t> dtypes_, ranks_;
  Run<int64_t> extents_;
};

class TileReader {
 public:
  explicit TileReader(schema::Tiles::Reader in)
      : dtypes_(in.getDtypes()),
        are_bound_(in.getAreBound()),
        ranks_(in.getRanks()),
        extents_(in.getExtents()) {}

  bool Has(uint64_t count) const { return dtypes_.Has(count) && are_bound_.Has(count); }
  absl::Status Next(TilePlan* tile) {
    if (!Has(1)) return Malformed("tiles", "too few rows");
    RETURN_IF_ERROR(ReadEnum("tiles", dtypes_.Next(), kLastDType, &tile->dtype));
    RETURN_IF_ERROR(ReadBool("tiles", are_bound_.Next(), &tile->is_bound));
    RETURN_IF_ERROR(ReadShape("tiles", &ranks_, &extents_, &tile->shape));
    RETURN_IF_ERROR(ReadShape("tiles", &ranks_, &extents_, &tile->global));
    RETURN_IF_ERROR(ReadShape("tiles", &ranks_, &extents_, &tile->offset));
    return ReadShape("tiles", &ranks_, &extents_, &tile->microbatch_stride);
  }
  absl::Status Finish() const {
    if (dtypes_.is_done() && are_bound_.is_done() && ranks_.is_done() && extents_.is_done()) {
      return absl::OkStatus();
    }
    return Malformed("tiles", "more entries than kernels and states use");
  }

 private:
  Run<uint8_t> dtypes_, are_bound_, ranks_;
  Run<int64_t> extents_;
};

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_PLAN_COLUMNS_INTERNAL_H_
