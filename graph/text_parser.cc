// The parser of the text format: recursive descent, one token of look-ahead. Shardings are kept as
// written until the statement's mesh is known, which is named after them.

#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/text_lexer.h"

namespace penstock::graph {
namespace {

struct WrittenAxis {
  Token name;
  int64_t pre = 1;
  int64_t size = 0;  // 0: the whole axis
};

struct WrittenDim {
  std::vector<WrittenAxis> axes;
  bool is_open = false;
  std::optional<int> priority;
  std::optional<Window> window;
  std::optional<SubBatch> sub_batch;
};

struct WrittenPartial {
  Reduction reduction = Reduction::kSum;
  std::vector<WrittenAxis> axes;
};

struct WrittenSharding {
  Token at;
  std::vector<WrittenDim> dims;
  std::vector<WrittenPartial> partials;
  std::vector<WrittenAxis> replicated;
};

struct WrittenResult {
  Token name;
  TensorType type;
  std::optional<WrittenSharding> sharding;
};

struct Statement {
  Token at;
  Token op;
  std::vector<WrittenResult> results;
  std::vector<Token> operands;
  Attributes attributes;
  Token mesh;  // kEnd when not given
  int stage = -1;
  Phase phase = Phase::kForward;
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view file, const OpRegistry& ops)
      : file_(file), ops_(ops), lexer_(text, file) {}

  absl::StatusOr<Graph> Parse();
  absl::StatusOr<Sharding> ParseShardingOf(const Mesh& mesh, const Shape& shape);

 private:
  // --- Tokens ---
  absl::Status Advance();
  bool At(char punctuation) const { return token_.Is(punctuation); }
  absl::StatusOr<bool> TryTake(char punctuation);
  absl::Status Take(char punctuation, std::string_view where);
  absl::StatusOr<Token> TakeKind(Token::Kind kind, std::string_view what);
  absl::StatusOr<int64_t> TakeInteger(std::string_view what, int64_t min, int64_t max);
  absl::Status Error(std::string_view message) const { return lexer_.Error(token_, message); }
  absl::Status Expected(std::string_view what) const;

  // --- Grammar ---
  absl::Status ParseMesh();
  absl::Status ParseGraphBody();
  absl::Status ParseStatement();
  absl::Status ParseTypes(Statement* statement);
  absl::Status ParsePlacement(Statement* statement);
  absl::StatusOr<TensorType> ParseType();
  absl::StatusOr<Attributes> ParseAttributes();
  absl::StatusOr<AttrValue> ParseAttrValue(int depth);
  absl::StatusOr<AttrValue> ParseWordValue();
  absl::StatusOr<WrittenSharding> ParseSharding();
  absl::StatusOr<WrittenDim> ParseDim();
  absl::StatusOr<WrittenAxis> ParseAxis();
  absl::StatusOr<Window> ParseWindow();
  absl::StatusOr<SubBatch> ParseSubBatch();
  absl::Status ParseReturn();

  // --- Meaning ---
  absl::Status AddStatement(Statement statement);
  absl::StatusOr<NodeId> AddNode(const Op* op, const Statement& statement,
                                 absl::Span<const ValueId> operands,
                                 absl::Span<const std::string> names);
  absl::StatusOr<ValueId> FindValue(const Token& name) const;
  absl::StatusOr<AxisRef> Resolve(const Mesh& mesh, const WrittenAxis& axis) const;
  absl::StatusOr<Sharding> Resolve(const Mesh& mesh, const WrittenSharding& written,
                                   const Shape& shape) const;

  std::string_view file_;
  const OpRegistry& ops_;
  Lexer lexer_;
  Token token_;
  Graph graph_;
  Mesh none_;
};

absl::Status Parser::Advance() {
  ASSIGN_OR_RETURN(token_, lexer_.Next());
  return absl::OkStatus();
}

absl::Status Parser::Expected(std::string_view what) const {
  return Error(StrCat("expected ", what, ", found ", Describe(token_)));
}

absl::StatusOr<bool> Parser::TryTake(char punctuation) {
  if (!At(punctuation)) return false;
  RETURN_IF_ERROR(Advance());
  return true;
}

absl::Status Parser::Take(char punctuation, std::string_view where) {
  if (!At(punctuation)) return Expected(StrCat("'", std::string(1, punctuation), "' ", where));
  return Advance();
}

absl::StatusOr<Token> Parser::TakeKind(Token::Kind kind, std::string_view what) {
  if (token_.kind != kind) return Expected(what);
  Token taken = token_;
  RETURN_IF_ERROR(Advance());
  return taken;
}

absl::StatusOr<int64_t> Parser::TakeInteger(std::string_view what, int64_t min, int64_t max) {
  if (token_.kind != Token::Kind::kInteger) return Expected(what);
  const int64_t value = token_.integer;
  if (value < min || value > max) {
    return Error(StrCat("expected ", what, " from ", min, " to ", max, ", found ", value));
  }
  RETURN_IF_ERROR(Advance());
  return value;
}

absl::StatusOr<Graph> Parser::Parse() {
  RETURN_IF_ERROR(Advance());
  while (token_.IsWord("mesh")) RETURN_IF_ERROR(ParseMesh());
  if (!token_.IsWord("graph")) return Expected("'mesh' or 'graph'");
  RETURN_IF_ERROR(ParseGraphBody());
  if (token_.kind != Token::Kind::kEnd) return Expected("the end of the file after the graph");
  return std::move(graph_);
}

absl::StatusOr<Sharding> Parser::ParseShardingOf(const Mesh& mesh, const Shape& shape) {
  graph_.mutable_meshes().push_back(mesh);
  RETURN_IF_ERROR(Advance());
  if (!At('@')) return Expected("a sharding such as @[dp, _]");
  ASSIGN_OR_RETURN(const WrittenSharding written, ParseSharding());
  if (token_.kind != Token::Kind::kEnd) return Expected("the end of the sharding");
  return Resolve(mesh, written, shape);
}

// mesh m = [mb=4 temporal, dp=2]
absl::Status Parser::ParseMesh() {
  RETURN_IF_ERROR(Advance());
  const Token at = token_;
  Mesh mesh;
  ASSIGN_OR_RETURN(Token name, TakeKind(Token::Kind::kIdentifier, "the name of the mesh"));
  mesh.name = name.text;
  for (const Mesh& other : graph_.meshes()) {
    if (other.name == mesh.name) {
      return lexer_.Error(name, StrCat("there is a mesh '", mesh.name, "' already"));
    }
  }
  RETURN_IF_ERROR(Take('=', "after the name of the mesh"));
  RETURN_IF_ERROR(Take('[', "before the axes of the mesh"));
  while (!At(']')) {
    if (!mesh.axes.empty()) RETURN_IF_ERROR(Take(',', "or ']' after an axis"));
    MeshAxis axis;
    ASSIGN_OR_RETURN(Token axis_name, TakeKind(Token::Kind::kIdentifier, "the name of an axis"));
    axis.name = axis_name.text;
    RETURN_IF_ERROR(Take('=', "after the name of an axis"));
    ASSIGN_OR_RETURN(axis.size, TakeInteger("the size of the axis", 1, int64_t{1} << 20));
    if (token_.IsWord("temporal")) {
      axis.is_temporal = true;
      RETURN_IF_ERROR(Advance());
    }
    mesh.axes.push_back(std::move(axis));
    if (absl::Status status = CheckMesh(mesh); !status.ok()) {
      return lexer_.Error(axis_name, ToStd(status.message()));
    }
  }
  if (absl::Status status = CheckMesh(mesh); !status.ok()) {
    return lexer_.Error(at, ToStd(status.message()));
  }
  graph_.mutable_meshes().push_back(std::move(mesh));
  return Advance();
}

// graph name { statements [return] }
absl::Status Parser::ParseGraphBody() {
  RETURN_IF_ERROR(Advance());
  if (token_.kind != Token::Kind::kIdentifier && token_.kind != Token::Kind::kString) {
    return Expected("the name of the graph");
  }
  graph_.set_name(token_.text);
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('{', "before the statements of the graph"));
  while (!At('}')) {
    if (token_.IsWord("return")) {
      RETURN_IF_ERROR(ParseReturn());
      if (!At('}')) return Expected("',' or, after the last statement, '}'");
      break;
    }
    if (token_.kind != Token::Kind::kValueName && token_.kind != Token::Kind::kIdentifier) {
      return Expected("a statement, 'return' or '}'");
    }
    RETURN_IF_ERROR(ParseStatement());
  }
  return Advance();
}

// results = op(operands) {attributes} : types placement
absl::Status Parser::ParseStatement() {
  Statement statement;
  statement.at = token_;
  while (token_.kind == Token::Kind::kValueName) {
    WrittenResult result;
    result.name = token_;
    statement.results.push_back(std::move(result));
    RETURN_IF_ERROR(Advance());
    if (At('=')) break;
    RETURN_IF_ERROR(Take(',', "or '=' after a result"));
    if (token_.kind != Token::Kind::kValueName) return Expected("the name of a result");
  }
  if (!statement.results.empty()) RETURN_IF_ERROR(Take('=', "after the results"));
  ASSIGN_OR_RETURN(statement.op, TakeKind(Token::Kind::kIdentifier, "the name of an operator"));

  if (At('(')) {
    RETURN_IF_ERROR(Advance());
    while (!At(')')) {
      if (!statement.operands.empty()) RETURN_IF_ERROR(Take(',', "or ')' after an operand"));
      ASSIGN_OR_RETURN(Token operand, TakeKind(Token::Kind::kValueName, "an operand such as '%x'"));
      statement.operands.push_back(std::move(operand));
    }
    RETURN_IF_ERROR(Advance());
  }
  if (At('{')) {
    ASSIGN_OR_RETURN(statement.attributes, ParseAttributes());
  }
  RETURN_IF_ERROR(ParseTypes(&statement));
  RETURN_IF_ERROR(ParsePlacement(&statement));
  return AddStatement(std::move(statement));
}

absl::Status Parser::ParseTypes(Statement* statement) {
  if (statement->results.empty()) {
    return At(':') ? Error("a statement without results has no type") : absl::OkStatus();
  }
  RETURN_IF_ERROR(Take(':', "and a type for each result"));
  for (size_t i = 0; i < statement->results.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(Take(',', "and a type for each result"));
    ASSIGN_OR_RETURN(statement->results[i].type, ParseType());
    if (At('@')) {
      ASSIGN_OR_RETURN(statement->results[i].sharding, ParseSharding());
    }
  }
  return At(',') ? Error("there are more types than results") : absl::OkStatus();
}

// [on m] [stage 1] [phase backward]
absl::Status Parser::ParsePlacement(Statement* statement) {
  if (token_.IsWord("on")) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(statement->mesh, TakeKind(Token::Kind::kIdentifier, "the name of a mesh"));
  }
  if (token_.IsWord("stage")) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(int64_t stage, TakeInteger("the number of the stage", 0, kMaxStage));
    statement->stage = static_cast<int>(stage);
  }
  if (token_.IsWord("phase")) {
    RETURN_IF_ERROR(Advance());
    if (token_.IsWord("forward")) {
      statement->phase = Phase::kForward;
    } else if (token_.IsWord("backward")) {
      statement->phase = Phase::kBackward;
    } else if (token_.IsWord("weight_backward")) {
      statement->phase = Phase::kWeightBackward;
    } else if (token_.IsWord("update")) {
      statement->phase = Phase::kUpdate;
    } else {
      return Expected("'forward', 'backward', 'weight_backward' or 'update'");
    }
    RETURN_IF_ERROR(Advance());
  }
  return absl::OkStatus();
}

// f32[8, 16]
absl::StatusOr<TensorType> Parser::ParseType() {
  const Token at = token_;
  TensorType type;
  const std::optional<DType> dtype =
      token_.kind == Token::Kind::kIdentifier ? ParseDType(token_.text) : std::nullopt;
  if (!dtype.has_value()) return Expected("a type such as 'f32[8, 16]'");
  type.dtype = *dtype;
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('[', "after the element type"));
  while (!At(']')) {
    if (!type.shape.empty()) RETURN_IF_ERROR(Take(',', "or ']' after a dimension"));
    ASSIGN_OR_RETURN(int64_t extent, TakeInteger("the size of a dimension", 0, int64_t{1} << 48));
    type.shape.push_back(extent);
    if (absl::Status status = CheckShape(type.shape); !status.ok()) {
      return lexer_.Error(at, ToStd(status.message()));
    }
  }
  RETURN_IF_ERROR(Advance());
  return type;
}

// {axes=[1], keepdims=true}
absl::StatusOr<Attributes> Parser::ParseAttributes() {
  RETURN_IF_ERROR(Advance());
  Attributes attributes;
  while (!At('}')) {
    if (!attributes.empty()) RETURN_IF_ERROR(Take(',', "or '}' after an attribute"));
    ASSIGN_OR_RETURN(Token name,
                     TakeKind(Token::Kind::kIdentifier, "the name of an attribute or '}'"));
    if (attributes.Find(name.text) != nullptr) {
      return lexer_.Error(name, StrCat("the attribute '", name.text, "' is given twice"));
    }
    RETURN_IF_ERROR(Take('=', "after the name of an attribute"));
    ASSIGN_OR_RETURN(AttrValue value, ParseAttrValue(0));
    attributes.Set(name.text, std::move(value));
  }
  RETURN_IF_ERROR(Advance());
  return attributes;
}

absl::StatusOr<AttrValue> Parser::ParseAttrValue(int depth) {
  switch (token_.kind) {
    case Token::Kind::kInteger: {
      const AttrValue value = token_.integer;
      RETURN_IF_ERROR(Advance());
      return value;
    }
    case Token::Kind::kFloat: {
      const AttrValue value = token_.number;
      RETURN_IF_ERROR(Advance());
      return value;
    }
    case Token::Kind::kString: {
      const AttrValue value = token_.text;
      RETURN_IF_ERROR(Advance());
      return value;
    }
    case Token::Kind::kIdentifier:
      return ParseWordValue();
    default:
      break;
  }
  if (!At('[')) {
    return Expected("a value: a number, true, false, a string, an element type or a list");
  }
  if (depth >= kMaxAttributeDepth) {
    return Error(StrCat("lists are nested deeper than ", kMaxAttributeDepth));
  }
  RETURN_IF_ERROR(Advance());
  AttrValue::List list;
  while (!At(']')) {
    if (!list.empty()) RETURN_IF_ERROR(Take(',', "or ']' after an element of a list"));
    ASSIGN_OR_RETURN(AttrValue element, ParseAttrValue(depth + 1));
    list.push_back(std::move(element));
  }
  RETURN_IF_ERROR(Advance());
  return AttrValue(std::move(list));
}

absl::StatusOr<AttrValue> Parser::ParseWordValue() {
  std::optional<AttrValue> value;
  if (token_.IsWord("true")) {
    value = AttrValue(true);
  } else if (token_.IsWord("false")) {
    value = AttrValue(false);
  } else if (token_.IsWord("inf")) {
    value = AttrValue(std::numeric_limits<double>::infinity());
  } else if (token_.IsWord("nan")) {
    value = AttrValue(std::numeric_limits<double>::quiet_NaN());
  } else if (const std::optional<DType> dtype = ParseDType(token_.text); dtype.has_value()) {
    value = AttrValue(*dtype);
  }
  if (!value.has_value()) {
    return Expected("a value: a number, true, false, a string, an element type or a list");
  }
  RETURN_IF_ERROR(Advance());
  return *std::move(value);
}

// @[mb.dp, ?] partial(sum, tp) replicated(a)
absl::StatusOr<WrittenSharding> Parser::ParseSharding() {
  WrittenSharding sharding;
  sharding.at = token_;
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('[', "after '@'"));
  while (!At(']')) {
    if (!sharding.dims.empty()) RETURN_IF_ERROR(Take(',', "or ']' after an entry of a sharding"));
    ASSIGN_OR_RETURN(WrittenDim dim, ParseDim());
    sharding.dims.push_back(std::move(dim));
  }
  RETURN_IF_ERROR(Advance());

  while (token_.IsWord("partial") || token_.IsWord("replicated")) {
    const bool is_partial = token_.IsWord("partial");
    RETURN_IF_ERROR(Advance());
    RETURN_IF_ERROR(Take('(', is_partial ? "after 'partial'" : "after 'replicated'"));
    WrittenPartial written;
    if (is_partial) {
      const std::optional<Reduction> reduction =
          token_.kind == Token::Kind::kIdentifier ? ParseReduction(token_.text) : std::nullopt;
      if (!reduction.has_value()) return Expected("a reduction: sum, max, min or prod");
      written.reduction = *reduction;
      RETURN_IF_ERROR(Advance());
      RETURN_IF_ERROR(Take(',', "and the axes after the reduction"));
    }
    ASSIGN_OR_RETURN(WrittenAxis first, ParseAxis());
    written.axes.push_back(std::move(first));
    while (!At(')')) {
      RETURN_IF_ERROR(Take(',', "or ')' after an axis"));
      ASSIGN_OR_RETURN(WrittenAxis axis, ParseAxis());
      written.axes.push_back(std::move(axis));
    }
    RETURN_IF_ERROR(Advance());
    if (is_partial) {
      sharding.partials.push_back(std::move(written));
    } else {
      for (WrittenAxis& axis : written.axes) sharding.replicated.push_back(std::move(axis));
    }
  }
  return sharding;
}

// _ | ? | dp.tp | dp? p1 | dp window(of=7, low=1) | dp subbatch(of=2, index=0)
absl::StatusOr<WrittenDim> Parser::ParseDim() {
  WrittenDim dim;
  if (token_.IsWord("_")) {
    RETURN_IF_ERROR(Advance());
  } else if (At('?')) {
    dim.is_open = true;
    RETURN_IF_ERROR(Advance());
  } else {
    if (token_.kind != Token::Kind::kIdentifier) return Expected("an axis, '_' or '?'");
    do {
      ASSIGN_OR_RETURN(WrittenAxis axis, ParseAxis());
      dim.axes.push_back(std::move(axis));
      ASSIGN_OR_RETURN(const bool has_more, TryTake('.'));
      if (!has_more) break;
    } while (true);
    ASSIGN_OR_RETURN(dim.is_open, TryTake('?'));
  }
  if (token_.IsWord("window")) {
    ASSIGN_OR_RETURN(dim.window, ParseWindow());
  }
  if (token_.IsWord("subbatch")) {
    ASSIGN_OR_RETURN(dim.sub_batch, ParseSubBatch());
  }
  if (token_.kind != Token::Kind::kIdentifier) return dim;
  // A priority: p and a small number.
  int priority = 0;
  const bool is_priority = token_.text.size() >= 2 && token_.text.size() <= 7 &&
                           token_.text[0] == 'p' &&
                           token_.text.find_first_not_of("0123456789", 1) == std::string::npos;
  if (!is_priority) return Expected("',', ']' or a priority such as 'p1'");
  for (char digit : std::string_view(token_.text).substr(1)) priority = priority * 10 + digit - '0';
  dim.priority = priority;
  RETURN_IF_ERROR(Advance());
  return dim;
}

// window(of=7, stride=2, low=1): `of` first, the others where they differ from the defaults.
absl::StatusOr<Window> Parser::ParseWindow() {
  Window window;
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('(', "after 'window'"));
  const std::pair<std::string_view, int64_t*> fields[] = {{"of", &window.extent},
                                                          {"stride", &window.stride},
                                                          {"divisor", &window.divisor},
                                                          {"low", &window.low},
                                                          {"size", &window.size}};
  constexpr int64_t kMax = int64_t{1} << 48;
  for (const auto& [name, field] : fields) {
    const bool is_first = field == &window.extent;
    if (!is_first && At(')')) break;
    if (!token_.IsWord(name)) {
      if (is_first) return Expected("'of', the number of elements that read windows");
      continue;
    }
    RETURN_IF_ERROR(Advance());
    RETURN_IF_ERROR(Take('=', StrCat("after '", name, "'")));
    ASSIGN_OR_RETURN(*field, TakeInteger("a number", field == &window.low ? -kMax : 0, kMax));
    if (At(')')) break;
    RETURN_IF_ERROR(Take(',', "or ')' in a window"));
  }
  RETURN_IF_ERROR(Take(')', "after stride, divisor, low and size, in this order"));
  return window;
}

// subbatch(of=2, index=0)
absl::StatusOr<SubBatch> Parser::ParseSubBatch() {
  SubBatch sub_batch;
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('(', "after 'subbatch'"));
  if (!token_.IsWord("of")) return Expected("'of', the number of sub-batches");
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('=', "after 'of'"));
  ASSIGN_OR_RETURN(sub_batch.count, TakeInteger("a number", 1, int64_t{1} << 20));
  RETURN_IF_ERROR(Take(',', "after the number of sub-batches"));
  if (!token_.IsWord("index")) return Expected("'index'");
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(Take('=', "after 'index'"));
  ASSIGN_OR_RETURN(sub_batch.index, TakeInteger("a number", 0, sub_batch.count - 1));
  RETURN_IF_ERROR(Take(')', "after the index"));
  return sub_batch;
}

// dp | tp:(2)4
absl::StatusOr<WrittenAxis> Parser::ParseAxis() {
  WrittenAxis axis;
  ASSIGN_OR_RETURN(axis.name, TakeKind(Token::Kind::kIdentifier, "an axis"));
  ASSIGN_OR_RETURN(const bool is_piece, TryTake(':'));
  if (!is_piece) return axis;
  constexpr int64_t kMax = int64_t{1} << 20;
  RETURN_IF_ERROR(Take('(', "and the parts major to the sub-axis"));
  ASSIGN_OR_RETURN(axis.pre, TakeInteger("the parts major to the sub-axis", 1, kMax));
  RETURN_IF_ERROR(Take(')', "after the parts major to the sub-axis"));
  ASSIGN_OR_RETURN(axis.size, TakeInteger("the size of the sub-axis", 1, kMax));
  return axis;
}

// return %a @[dp], %b
absl::Status Parser::ParseReturn() {
  RETURN_IF_ERROR(Advance());
  if (token_.kind != Token::Kind::kValueName) return absl::OkStatus();
  while (true) {
    ASSIGN_OR_RETURN(Token name, TakeKind(Token::Kind::kValueName, "a returned value"));
    ASSIGN_OR_RETURN(const ValueId value, FindValue(name));
    Return returned;
    returned.value = value;
    if (At('@')) {
      ASSIGN_OR_RETURN(WrittenSharding written, ParseSharding());
      const Value& info = graph_.value(value);
      ASSIGN_OR_RETURN(returned.sharding, Resolve(MeshOf(graph_, graph_.node(info.producer), none_),
                                                  written, info.type.shape));
    }
    graph_.mutable_returns().push_back(std::move(returned));
    ASSIGN_OR_RETURN(const bool has_more, TryTake(','));
    if (!has_more) return absl::OkStatus();
  }
}

absl::StatusOr<ValueId> Parser::FindValue(const Token& name) const {
  const ValueId value = graph_.FindValue(name.text);
  if (value != kNoValue) return value;
  std::vector<std::string_view> known;
  for (ValueId id = 0; id < graph_.num_values(); ++id) known.push_back(graph_.value(id).name);
  const std::string nearest = NearestName(name.text, known);
  return lexer_.Error(name,
                      StrCat("unknown value '%", name.text, "'; expected one defined above",
                             nearest.empty() ? "" : StrCat("; did you mean '%", nearest, "'?")));
}

absl::StatusOr<AxisRef> Parser::Resolve(const Mesh& mesh, const WrittenAxis& axis) const {
  const int index = mesh.FindAxis(axis.name.text);
  if (index < 0) {
    if (graph_.meshes().empty()) {
      return lexer_.Error(axis.name, StrCat("axis '", axis.name.text,
                                            "' needs a mesh; expected one such as 'mesh m = [",
                                            axis.name.text, "=2]' before the graph"));
    }
    std::vector<std::string_view> known;
    for (const MeshAxis& each : mesh.axes) known.push_back(each.name);
    return lexer_.Error(axis.name, StrCat("mesh ", mesh.name, " has no axis '", axis.name.text,
                                          "'; expected one of: ", StrJoin(known, ", ")));
  }
  if (axis.size == 0) return WholeAxis(mesh, index);
  return AxisRef{index, axis.pre, axis.size};
}

absl::StatusOr<Sharding> Parser::Resolve(const Mesh& mesh, const WrittenSharding& written,
                                         const Shape& shape) const {
  Sharding sharding;
  auto resolve_all = [&](const std::vector<WrittenAxis>& axes,
                         std::vector<AxisRef>* resolved) -> absl::Status {
    for (const WrittenAxis& axis : axes) {
      ASSIGN_OR_RETURN(const AxisRef reference, Resolve(mesh, axis));
      resolved->push_back(reference);
    }
    return absl::OkStatus();
  };
  for (const WrittenDim& dim : written.dims) {
    DimSharding resolved;
    resolved.is_open = dim.is_open;
    resolved.priority = dim.priority;
    resolved.window = dim.window;
    resolved.sub_batch = dim.sub_batch;
    RETURN_IF_ERROR(resolve_all(dim.axes, &resolved.axes));
    sharding.dims.push_back(std::move(resolved));
  }
  for (const WrittenPartial& partial : written.partials) {
    PartialSpec resolved;
    resolved.reduction = partial.reduction;
    RETURN_IF_ERROR(resolve_all(partial.axes, &resolved.axes));
    sharding.partials.push_back(std::move(resolved));
  }
  RETURN_IF_ERROR(resolve_all(written.replicated, &sharding.replicated));
  if (absl::Status status = CheckSharding(mesh, sharding, shape); !status.ok()) {
    return lexer_.Error(written.at, ToStd(status.message()));
  }
  Canonicalize(mesh, &sharding);
  return sharding;
}

absl::Status Parser::AddStatement(Statement statement) {
  const Op* op = ops_.Find(statement.op.text);
  if (op == nullptr) {
    const std::string nearest = NearestName(statement.op.text, ops_.Names());
    return lexer_.Error(statement.op,
                        StrCat("unknown operator '", statement.op.text, "'",
                               nearest.empty() ? "" : StrCat("; did you mean '", nearest, "'?")));
  }
  std::vector<ValueId> operands;
  for (const Token& operand : statement.operands) {
    ASSIGN_OR_RETURN(const ValueId value, FindValue(operand));
    operands.push_back(value);
  }
  int mesh = 0;
  if (statement.mesh.kind != Token::Kind::kEnd) {
    while (mesh < static_cast<int>(graph_.meshes().size()) &&
           graph_.meshes()[mesh].name != statement.mesh.text) {
      ++mesh;
    }
    if (mesh == static_cast<int>(graph_.meshes().size())) {
      return lexer_.Error(statement.mesh, StrCat("there is no mesh '", statement.mesh.text, "'"));
    }
  }
  std::vector<std::string> names;
  absl::flat_hash_map<std::string, int> seen;
  for (const WrittenResult& result : statement.results) {
    if (graph_.FindValue(result.name.text) != kNoValue || ++seen[result.name.text] > 1) {
      return lexer_.Error(result.name,
                          StrCat("there is a value '%", result.name.text, "' already"));
    }
    names.push_back(result.name.text);
  }

  ASSIGN_OR_RETURN(const NodeId id, AddNode(op, statement, operands, names));
  Node& node = graph_.mutable_node(id);
  node.mesh = mesh;
  node.stage = statement.stage;
  node.phase = statement.phase;
  node.location = {std::string(file_), statement.at.line, statement.at.column};
  for (size_t i = 0; i < statement.results.size(); ++i) {
    Value& value = graph_.mutable_value(node.results[i]);
    const WrittenResult& written = statement.results[i];
    if (!(written.type == value.type)) {
      return lexer_.Error(statement.at,
                          StrCat("%", value.name, " is declared ", penstock::ToString(written.type),
                                 ", but ", op->name(), " gives ", penstock::ToString(value.type)));
    }
    if (!written.sharding.has_value()) continue;
    ASSIGN_OR_RETURN(value.sharding,
                     Resolve(MeshOf(graph_, node, none_), *written.sharding, value.type.shape));
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeId> Parser::AddNode(const Op* op, const Statement& statement,
                                       absl::Span<const ValueId> operands,
                                       absl::Span<const std::string> names) {
  const int num_results = static_cast<int>(names.size());
  if (!op->has_declared_type()) {
    Attributes attributes = statement.attributes;
    if (num_results == 1) op->CompleteAttributes(statement.results[0].type, attributes);
    absl::StatusOr<NodeId> id = graph_.Add(op, operands, std::move(attributes), names, num_results);
    if (!id.ok()) return lexer_.Error(statement.at, ToStd(id.status().message()));
    return id;
  }
  absl::Status status = CheckAttributes(*op, statement.attributes);
  if (!operands.empty()) {
    status = absl::InvalidArgumentError(StrCat(op->name(), ": takes no operands"));
  } else if (num_results != 1) {
    status = absl::InvalidArgumentError(StrCat(op->name(), ": has 1 result, not ", num_results));
  }
  if (!status.ok()) return lexer_.Error(statement.at, ToStd(status.message()));
  Node node;
  node.op = op;
  node.attributes = statement.attributes;
  return graph_.AddTyped(std::move(node), {statement.results[0].type}, names);
}

}  // namespace

absl::StatusOr<Graph> ParseGraph(std::string_view text, std::string_view file,
                                 const OpRegistry& ops) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        StrCat(file, ": the text has ", text.size(), " bytes; the limit is ", kMaxTextBytes));
  }
  return Parser(text, file, ops).Parse();
}

absl::StatusOr<Sharding> ParseSharding(std::string_view text, std::string_view file,
                                       const Mesh& mesh, const Shape& shape) {
  const OpRegistry ops;
  return Parser(text, file, ops).ParseShardingOf(mesh, shape);
}

}  // namespace penstock::graph
