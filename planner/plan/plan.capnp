# The payload of a plan file (plan_io.h). Tables are structs of columns: all columns of a table have
# one entry a row, except those said to be runs, in which rows take as many entries as a count
# column gives them, one row after another. Names are indices into the string table. Enumerations
# are stored by their value in planner/plan/plan.h and base/.

@0xe15c2c830f8c52c3;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("penstock::planner::schema");

struct Strings {
  text @0 :Data;            # all strings, one after another
  ends @1 :List(UInt32);    # of each, where it ends
}

# Tensor types. In Plan those of the feeds, then the fetches, then the states.
struct Types {
  dtypes @0 :List(UInt8);
  ranks @1 :List(UInt8);
  extents @2 :List(Int64);  # runs by ranks
}

# Tiles: of each kernel its inputs and outputs, then those of each state's placements.
struct Tiles {
  dtypes @0 :List(UInt8);
  areBound @1 :List(UInt8);
  ranks @2 :List(UInt8);    # four a tile: shape, global, offset, microbatchStride
  extents @3 :List(Int64);  # runs by ranks
}

struct Kernels {
  ops @0 :List(UInt32);
  accumulate @1 :List(UInt8);
  numInputs @2 :List(UInt32);
  numOutputs @3 :List(UInt32);
  numAttributes @4 :List(UInt32);
  attributeNames @5 :List(UInt32);   # runs by numAttributes, increasing within a kernel
  attributeKinds @6 :List(UInt8);    # one a value, in preorder: a list, then its elements
  attributeValues @7 :List(UInt64);  # one a value: the integer, the double's bits, the bool, the
                                     # string, the dtype or the number of elements
}

struct Registers {
  classes @0 :List(UInt8);
  perMicrobatch @1 :List(UInt8);
  slots @2 :List(UInt32);
  offsets @3 :List(UInt64);
  slotBytes @4 :List(UInt64);
}

struct Actors {
  names @0 :List(UInt32);
  kinds @1 :List(UInt8);
  kernels @2 :List(UInt32);
  targets @3 :List(UInt32);
  numInputs @4 :List(UInt32);
  numOutputs @5 :List(UInt32);
  workspaceOffsets @6 :List(UInt64);
  workspaceBytes @7 :List(UInt64);
  operandRegisters @8 :List(UInt32);  # runs by numInputs and then numOutputs
  operandOffsets @9 :List(UInt64);    # likewise
}

struct Channels {
  producers @0 :List(UInt32);
  consumers @1 :List(UInt32);
  registers @2 :List(UInt32);
  produce @3 :List(UInt32);
  consume @4 :List(UInt32);
  capacities @5 :List(UInt32);
  initial @6 :List(UInt32);
}

struct Phases {
  names @0 :List(UInt32);
  kinds @1 :List(UInt8);
  lanes @2 :List(UInt8);
  perMicrobatch @3 :List(UInt8);
  firstActors @4 :List(UInt32);
  numActors @5 :List(UInt32);
  predictedSeconds @6 :List(Float64);
  chunks @7 :List(UInt32);
}

struct Device {
  stage @0 :UInt32;
  arenaBytes @1 :UInt64;
  stateBytes @2 :UInt64;
  channelBytes @3 :UInt64;
  workspaceBytes @4 :UInt64;
  registers @5 :Registers;
  actors @6 :Actors;
  channels @7 :Channels;
  phases @8 :Phases;
  hostBytes @9 :UInt64;
}

struct Stages {
  numDevices @0 :List(UInt32);
  devices @1 :List(UInt32);  # runs by numDevices
  numChoices @2 :List(UInt32);
  kinds @3 :List(UInt8);            # runs by numChoices
  microbatches @4 :List(UInt32);    # likewise
  chunks @5 :List(UInt32);          # likewise
}

struct Collectives {
  kinds @0 :List(UInt8);
  algorithms @1 :List(UInt8);
  reduces @2 :List(UInt8);
  dtypes @3 :List(UInt8);
  channels @4 :List(UInt32);
  roots @5 :List(UInt32);
  chunkBytes @6 :List(Int64);
  perMicrobatch @7 :List(UInt8);
  numDevices @8 :List(UInt32);
  numCounts @9 :List(UInt32);
  numPeers @10 :List(UInt32);
  devices @11 :List(UInt32);  # runs by numDevices
  counts @12 :List(Int64);    # runs by numCounts
  peers @13 :List(UInt32);    # runs by numPeers
  numHosts @14 :List(UInt32);
  hosts @15 :List(UInt32);    # runs by numHosts
  numTensors @16 :List(UInt32);
  tensorCounts @17 :List(Int64);  # runs by numTensors times numCounts
}

struct Transfers {
  channels @0 :List(UInt32);
  sources @1 :List(UInt32);
  destinations @2 :List(UInt32);
  numBytes @3 :List(UInt64);
  perMicrobatch @4 :List(UInt8);
}

struct Fetches {
  names @0 :List(UInt32);
  numActors @1 :List(UInt32);
}

struct States {
  names @0 :List(UInt32);
  inits @1 :List(UInt32);
  stds @2 :List(Float64);
  streams @3 :List(UInt32);
  areParameters @4 :List(UInt8);
  numPlacements @5 :List(UInt32);
  placementDevices @6 :List(UInt32);    # runs by numPlacements
  placementRegisters @7 :List(UInt32);  # likewise
}

struct Settings {
  names @0 :List(UInt32);
  values @1 :List(UInt32);
}

# Of a plan whose devices share programs (folded_plan.h). Then the devices are the programs, kernels
# and targets of actors are those of the folded plan, a collective has a row for each of its
# specifications, with the channel of its first group, and a transfer joins stages.
struct Folding {
  meshName @0 :UInt32;
  axisNames @1 :List(UInt32);
  axisSizes @2 :List(Int64);
  axesAreTemporal @3 :List(UInt8);
  classes @4 :List(UInt32);             # of each device of the mesh; empty: nothing is folded
  shardingRanks @5 :List(UInt8);
  dimPieces @6 :List(UInt32);           # runs by shardingRanks: pieces of axes that split each
  pieceAxes @7 :List(UInt32);           # runs by dimPieces, then by collectivePieces
  piecePres @8 :List(Int64);            # likewise
  pieceSizes @9 :List(Int64);           # likewise
  kernelShardings @10 :List(UInt32);    # of each kernel its inputs and outputs
  collectiveStages @11 :List(UInt32);
  collectiveRows @12 :List(UInt32);     # specifications in the table of collectives
  collectivePieces @13 :List(UInt32);
  transferShardings @14 :List(UInt32);
  transferTypes @15 :Types;
  stateStages @16 :List(UInt32);
  stateShardings @17 :List(UInt32);
  stateRegisters @18 :List(UInt32);     # of each state one a class
  viewTypes @19 :Types;
  viewWholes @20 :List(UInt32);
  viewParts @21 :List(UInt32);
  numViewOperands @22 :List(UInt32);    # of each program
  viewActors @23 :List(UInt32);         # runs by numViewOperands
  viewsAreOutputs @24 :List(UInt8);     # likewise
  viewIndices @25 :List(UInt32);        # likewise
  views @26 :List(UInt32);              # likewise
  windowDims @27 :List(UInt32);         # of all dimensions of shardings, those held in windows
  windows @28 :List(Int64);             # five each: extent, stride, divisor, low, size
  subBatchDims @29 :List(UInt32);       # of all dimensions of shardings, those of sub-batches
  subBatches @30 :List(Int64);          # two each: count, index
}

struct Plan {
  name @0 :UInt32;
  strategy @1 :UInt32;
  policy @2 :UInt32;
  graphFingerprint @3 :UInt64;
  numMicrobatches @4 :UInt32;
  numChannels @5 :UInt32;
  predictedStepSeconds @6 :Float64;
  predictedPeakBytes @7 :List(UInt64);
  strings @8 :Strings;
  types @9 :Types;
  tiles @10 :Tiles;
  kernels @11 :Kernels;
  devices @12 :List(Device);
  stages @13 :Stages;
  collectives @14 :Collectives;
  transfers @15 :Transfers;
  feedNames @16 :List(UInt32);
  fetches @17 :Fetches;
  states @18 :States;
  threadsPerDevice @19 :UInt32 = 1;
  settings @20 :Settings;
  folding @21 :Folding;
}
