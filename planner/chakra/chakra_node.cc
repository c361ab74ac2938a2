#include "planner/chakra/chakra_node.h"

#include <protozero/pbf_builder.hpp>
#include <protozero/pbf_message.hpp>
#include <protozero/varint.hpp>

#include <limits>
#include <utility>
#include <variant>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

// Fields of the schema's messages.
enum class MetadataField : protozero::pbf_tag_type { kVersion = 1, kAttr = 2 };
enum class NodeField : protozero::pbf_tag_type {
  kId = 1,
  kName = 2,
  kType = 3,
  kCtrlDeps = 4,
  kDataDeps = 5,
  kDurationMicros = 7,
  kAttr = 10,
};
enum class AttrField : protozero::pbf_tag_type {
  kName = 1,
  kDouble = 3,
  kFloat = 5,
  kInt32 = 7,
  kInt64 = 9,
  kUint32 = 11,
  kUint64 = 13,
  kSint32 = 15,
  kSint64 = 17,
  kFixed32 = 19,
  kFixed64 = 21,
  kSfixed32 = 23,
  kSfixed64 = 25,
  kBool = 27,
  kString = 29,
};

using NodeBuilder = protozero::pbf_builder<NodeField>;

protozero::data_view View(std::string_view text) { return {text.data(), text.size()}; }

void AppendMessage(std::string_view message, std::string* stream) {
  protozero::add_varint_to_buffer(stream, message.size());
  stream->append(message);
}

// The attributes of a node or of a file.
template <typename Field>
class AttrWriter {
 public:
  explicit AttrWriter(protozero::pbf_builder<Field>* message) : message_(*message) {}

  void Bool(std::string_view name, bool value) {
    Add(name, [&](auto& attr) { attr.add_bool(AttrField::kBool, value); });
  }
  void Int64(std::string_view name, int64_t value) {
    Add(name, [&](auto& attr) { attr.add_int64(AttrField::kInt64, value); });
  }
  void Uint64(std::string_view name, uint64_t value) {
    Add(name, [&](auto& attr) { attr.add_uint64(AttrField::kUint64, value); });
  }
  void Uint32(std::string_view name, uint32_t value) {
    Add(name, [&](auto& attr) { attr.add_uint32(AttrField::kUint32, value); });
  }
  void String(std::string_view name, std::string_view value) {
    Add(name, [&](auto& attr) { attr.add_string(AttrField::kString, View(value)); });
  }

 private:
  template <typename AddValue>
  void Add(std::string_view name, const AddValue& add_value) {
    protozero::pbf_builder<AttrField> attr(message_, Field::kAttr);
    attr.add_string(AttrField::kName, View(name));
    add_value(attr);
  }

  protozero::pbf_builder<Field>& message_;
};

// The value of an attribute, of whatever type a writer has given it.
struct AttrValue {
  std::string name;
  std::variant<std::monostate, std::string, int64_t, uint64_t, double> value;

  const std::string* text() const { return std::get_if<std::string>(&value); }
};

// As the file has it.
std::string ToString(const AttrValue& attr) {
  if (const std::string* text = attr.text()) return StrCat("'", *text, "'");
  if (const auto* number = std::get_if<int64_t>(&attr.value)) return StrCat(*number);
  if (const auto* number = std::get_if<uint64_t>(&attr.value)) return StrCat(*number);
  if (const auto* number = std::get_if<double>(&attr.value)) return StrCat(*number);
  return "no value";
}

// nullopt: it is no whole number from 0 on that 64 bits hold.
std::optional<uint64_t> Whole(const AttrValue& attr) {
  if (const auto* number = std::get_if<uint64_t>(&attr.value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&attr.value)) {
    return *number < 0 ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(*number));
  }
  if (const auto* number = std::get_if<double>(&attr.value)) {
    constexpr double kLimit = 18446744073709551616.0;  // 2^64
    // Some writers have counts as floating point numbers.
    if (*number >= 0 && *number < kLimit) return static_cast<uint64_t>(*number);
  }
  return std::nullopt;
}

// Protozero asserts that a field has the wire type that is asked for, so fields of another one are
// skipped as unknown ones are.
template <typename Message>
bool HasType(const Message& message, protozero::pbf_wire_type type) {
  return message.wire_type() == type;
}

AttrValue ParseAttr(const protozero::data_view& bytes) {
  using Type = protozero::pbf_wire_type;
  AttrValue value;
  protozero::pbf_message<AttrField> message(bytes);
  while (message.next()) {
    switch (message.tag()) {
      case AttrField::kName:
      case AttrField::kString: {
        if (!HasType(message, Type::length_delimited)) break;
        const bool is_name = message.tag() == AttrField::kName;
        if (is_name) {
          value.name = message.get_string();
        } else {
          value.value = message.get_string();
        }
        continue;
      }
      case AttrField::kDouble:
        if (!HasType(message, Type::fixed64)) break;
        value.value = message.get_double();
        continue;
      case AttrField::kFloat:
        if (!HasType(message, Type::fixed32)) break;
        value.value = double{message.get_float()};
        continue;
      case AttrField::kInt32:
      case AttrField::kInt64:
        if (!HasType(message, Type::varint)) break;
        value.value = message.get_int64();
        continue;
      case AttrField::kUint32:
      case AttrField::kUint64:
      case AttrField::kBool:
        if (!HasType(message, Type::varint)) break;
        value.value = message.get_uint64();
        continue;
      case AttrField::kSint32:
      case AttrField::kSint64:
        if (!HasType(message, Type::varint)) break;
        value.value = message.get_sint64();
        continue;
      case AttrField::kFixed32:
        if (!HasType(message, Type::fixed32)) break;
        value.value = uint64_t{message.get_fixed32()};
        continue;
      case AttrField::kSfixed32:
        if (!HasType(message, Type::fixed32)) break;
        value.value = int64_t{message.get_sfixed32()};
        continue;
      case AttrField::kFixed64:
        if (!HasType(message, Type::fixed64)) break;
        value.value = message.get_fixed64();
        continue;
      case AttrField::kSfixed64:
        if (!HasType(message, Type::fixed64)) break;
        value.value = message.get_sfixed64();
        continue;
    }
    message.skip();
  }
  return value;
}

template <typename Number>
absl::Status Take(const AttrValue& attr, std::optional<Number>* number) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<Number>::max());
  const std::optional<uint64_t> whole = Whole(attr);
  if (!whole.has_value() || *whole > kMost) {
    return absl::DataLossError(StrCat("attribute ", attr.name, " is ", ToString(attr),
                                      ", expected a whole number from 0 to ", kMost));
  }
  *number = static_cast<Number>(*whole);
  return absl::OkStatus();
}

absl::Status TakeAttr(const AttrValue& attr, ChakraNode* node) {
  if (attr.name == "is_cpu_op") {
    node->is_cpu_op = Whole(attr).value_or(0) != 0;
  } else if (attr.name == "pg_name") {
    const std::optional<uint64_t> number = Whole(attr);
    if (number.has_value()) {
      node->pg_name = StrCat(*number);
    } else if (const std::string* text = attr.text()) {
      node->pg_name = *text;
    }
  } else if (attr.name == "comm_type") {
    return Take(attr, &node->comm_type);
  } else if (attr.name == "stream") {
    std::optional<uint32_t> stream;
    RETURN_IF_ERROR(Take(attr, &stream));
    node->stream = *stream;
  } else {
    for (const auto& [name, number] :
         {std::pair("duration_ns", &node->duration_ns), std::pair("num_ops", &node->num_ops),
          std::pair("tensor_size", &node->tensor_size), std::pair("comm_size", &node->comm_size)}) {
      if (attr.name == name) return Take(attr, number);
    }
    for (const auto& [name, number] :
         {std::pair("comm_src", &node->comm_src), std::pair("comm_dst", &node->comm_dst),
          std::pair("comm_tag", &node->comm_tag), std::pair("step", &node->step)}) {
      if (attr.name == name) return Take(attr, number);
    }
  }
  return absl::OkStatus();
}

// A list may come as one packed field, as repeated ones, or both.
void ParseDeps(protozero::pbf_message<NodeField>* message, std::vector<uint64_t>* deps) {
  if (HasType(*message, protozero::pbf_wire_type::length_delimited)) {
    const auto range = message->get_packed_uint64();
    deps->insert(deps->end(), range.begin(), range.end());
  } else if (HasType(*message, protozero::pbf_wire_type::varint)) {
    deps->push_back(message->get_uint64());
  } else {
    message->skip();
  }
}

absl::Status ParseNode(std::string_view bytes, ChakraNode* node) {
  using Type = protozero::pbf_wire_type;
  protozero::pbf_message<NodeField> message(View(bytes));
  while (message.next()) {
    switch (message.tag()) {
      case NodeField::kId:
        if (!HasType(message, Type::varint)) break;
        node->id = message.get_uint64();
        continue;
      case NodeField::kName:
        if (!HasType(message, Type::length_delimited)) break;
        node->name = message.get_string();
        continue;
      case NodeField::kType:
        if (!HasType(message, Type::varint)) break;
        node->type = static_cast<ChakraNodeType>(message.get_enum());
        continue;
      case NodeField::kCtrlDeps:
        ParseDeps(&message, &node->ctrl_deps);
        continue;
      case NodeField::kDataDeps:
        ParseDeps(&message, &node->data_deps);
        continue;
      case NodeField::kDurationMicros:
        if (!HasType(message, Type::varint)) break;
        node->duration_micros = message.get_uint64();
        continue;
      case NodeField::kAttr:
        if (!HasType(message, Type::length_delimited)) break;
        RETURN_IF_ERROR(TakeAttr(ParseAttr(message.get_view()), node));
        continue;
    }
    message.skip();
  }
  return absl::OkStatus();
}

absl::Status ParseMetadata(std::string_view bytes, ChakraMetadata* metadata) {
  using Type = protozero::pbf_wire_type;
  protozero::pbf_message<MetadataField> message(View(bytes));
  while (message.next()) {
    const bool is_text = HasType(message, Type::length_delimited);
    if (message.tag() == MetadataField::kVersion && is_text) {
      metadata->version = message.get_string();
    } else if (message.tag() == MetadataField::kAttr && is_text) {
      const AttrValue attr = ParseAttr(message.get_view());
      std::optional<uint32_t> number;
      if (attr.name != "num_ranks" && attr.name != "stands_for") continue;
      RETURN_IF_ERROR(Take(attr, &number));
      (attr.name == "num_ranks" ? metadata->num_ranks : metadata->stands_for) = *number;
    } else {
      message.skip();
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ChakraCommType(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 0;
    case CollectiveKind::kAllGather:
      return 2;
    case CollectiveKind::kBroadcast:
      return 5;
    case CollectiveKind::kAllToAll:
      return 6;
    case CollectiveKind::kReduceScatter:
      return 7;
    case CollectiveKind::kPermute:
      break;
  }
  return -1;
}

std::optional<CollectiveKind> KindOfCommType(int64_t comm_type) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
        CollectiveKind::kAllToAll, CollectiveKind::kReduceScatter}) {
    if (ChakraCommType(kind) == comm_type) return kind;
  }
  return std::nullopt;
}

void AppendChakraMetadata(const ChakraMetadata& metadata, std::string* stream) {
  std::string bytes;
  protozero::pbf_builder<MetadataField> message(bytes);
  message.add_string(MetadataField::kVersion, metadata.version);
  AttrWriter<MetadataField> attrs(&message);
  attrs.Uint32("num_ranks", metadata.num_ranks);
  attrs.Uint32("stands_for", metadata.stands_for);
  AppendMessage(bytes, stream);
}

void AppendChakraNode(const ChakraNode& node, std::string* stream) {
  std::string bytes;
  NodeBuilder message(bytes);
  message.add_uint64(NodeField::kId, node.id);
  message.add_string(NodeField::kName, View(node.name));
  message.add_enum(NodeField::kType, static_cast<int32_t>(node.type));
  message.add_packed_uint64(NodeField::kCtrlDeps, node.ctrl_deps.begin(), node.ctrl_deps.end());
  message.add_packed_uint64(NodeField::kDataDeps, node.data_deps.begin(), node.data_deps.end());
  if (node.duration_micros > 0) {
    message.add_uint64(NodeField::kDurationMicros, node.duration_micros);
  }
  AttrWriter<NodeField> attrs(&message);
  attrs.Bool("is_cpu_op", node.is_cpu_op);
  if (node.duration_ns.has_value()) attrs.Uint64("duration_ns", *node.duration_ns);
  if (node.num_ops.has_value()) attrs.Int64("num_ops", static_cast<int64_t>(*node.num_ops));
  if (node.tensor_size.has_value()) attrs.Uint64("tensor_size", *node.tensor_size);
  if (node.comm_type.has_value()) attrs.Int64("comm_type", *node.comm_type);
  if (node.comm_size.has_value()) attrs.Int64("comm_size", static_cast<int64_t>(*node.comm_size));
  if (node.comm_src.has_value()) attrs.Uint32("comm_src", *node.comm_src);
  if (node.comm_dst.has_value()) attrs.Uint32("comm_dst", *node.comm_dst);
  if (node.comm_tag.has_value()) attrs.Uint32("comm_tag", *node.comm_tag);
  if (!node.pg_name.empty()) attrs.String("pg_name", node.pg_name);
  if (node.stream > 0) attrs.Uint32("stream", node.stream);
  if (node.step.has_value()) attrs.Uint32("step", *node.step);
  AppendMessage(bytes, stream);
}

absl::StatusOr<ChakraMetadata> ParseChakraMetadata(std::string_view message) {
  try {
    ChakraMetadata metadata;
    RETURN_IF_ERROR(ParseMetadata(message, &metadata));
    return metadata;
  } catch (const protozero::exception& error) {
    return absl::DataLossError(StrCat("malformed message: ", error.what()));
  }
}

absl::StatusOr<ChakraNode> ParseChakraNode(std::string_view message) {
  try {
    ChakraNode node;
    RETURN_IF_ERROR(ParseNode(message, &node));
    return node;
  } catch (const protozero::exception& error) {
    return absl::DataLossError(StrCat("malformed message: ", error.what()));
  }
}

}  // namespace penstock::planner
