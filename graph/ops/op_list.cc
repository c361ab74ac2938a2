// The list of the operators: one line an operator. A line declares the function that makes it, in
// the file of its own, and adds it.

#include <memory>
#include <utility>

#include "graph/op.h"

namespace penstock::graph {
namespace ops {

// Add fails only for a name listed twice, which op_test.cc notices.
static void AddAll(OpRegistry& registry) {
  const auto add = [&registry](std::unique_ptr<const Op> op) {
    registry.Add(std::move(op)).IgnoreError();
  };
  using OpPtr = std::unique_ptr<const Op>;
  // clang-format off
  // Elementwise.
  extern OpPtr MakeAdd(); add(MakeAdd());
  extern OpPtr MakeSub(); add(MakeSub());
  extern OpPtr MakeMul(); add(MakeMul());
  extern OpPtr MakeDiv(); add(MakeDiv());
  extern OpPtr MakeMax(); add(MakeMax());
  extern OpPtr MakeMin(); add(MakeMin());
  extern OpPtr MakeEqual(); add(MakeEqual());
  extern OpPtr MakeLess(); add(MakeLess());
  extern OpPtr MakeGreater(); add(MakeGreater());
  extern OpPtr MakeWhere(); add(MakeWhere());
  extern OpPtr MakeNeg(); add(MakeNeg());
  extern OpPtr MakeAbs(); add(MakeAbs());
  extern OpPtr MakeExp(); add(MakeExp());
  extern OpPtr MakeLog(); add(MakeLog());
  extern OpPtr MakeTanh(); add(MakeTanh());
  extern OpPtr MakeSqrt(); add(MakeSqrt());
  extern OpPtr MakeSquare(); add(MakeSquare());
  extern OpPtr MakeRsqrt(); add(MakeRsqrt());
  extern OpPtr MakeSin(); add(MakeSin());
  extern OpPtr MakeCos(); add(MakeCos());
  extern OpPtr MakeRelu(); add(MakeRelu());
  extern OpPtr MakeSilu(); add(MakeSilu());
  extern OpPtr MakeSigmoid(); add(MakeSigmoid());
  extern OpPtr MakeGelu(); add(MakeGelu());
  extern OpPtr MakeGeluGrad(); add(MakeGeluGrad());
  extern OpPtr MakeCast(); add(MakeCast());
  extern OpPtr MakeBiasAdd(); add(MakeBiasAdd());
  extern OpPtr MakeBiasGelu(); add(MakeBiasGelu());
  extern OpPtr MakeBiasGeluGrad(); add(MakeBiasGeluGrad());

  // Shape.
  extern OpPtr MakeReshape(); add(MakeReshape());
  extern OpPtr MakeTranspose(); add(MakeTranspose());
  extern OpPtr MakeBroadcast(); add(MakeBroadcast());
  extern OpPtr MakeSlice(); add(MakeSlice());
  extern OpPtr MakeConcat(); add(MakeConcat());
  extern OpPtr MakePad(); add(MakePad());
  extern OpPtr MakeRoll(); add(MakeRoll());
  extern OpPtr MakeSplit(); add(MakeSplit());
  extern OpPtr MakeDynamicSlice(); add(MakeDynamicSlice());
  extern OpPtr MakeDynamicUpdateSlice(); add(MakeDynamicUpdateSlice());

  // Contractions and reductions.
  extern OpPtr MakeMatmul(); add(MakeMatmul());
  extern OpPtr MakeEinsum(); add(MakeEinsum());
  extern OpPtr MakeEinsumBias(); add(MakeEinsumBias());
  extern OpPtr MakeEinsumBiasGelu(); add(MakeEinsumBiasGelu());
  extern OpPtr MakeEinsumGeluGrad(); add(MakeEinsumGeluGrad());
  extern OpPtr MakeReduceSum(); add(MakeReduceSum());
  extern OpPtr MakeReduceMean(); add(MakeReduceMean());
  extern OpPtr MakeReduceMax(); add(MakeReduceMax());
  extern OpPtr MakeSumSquares(); add(MakeSumSquares());
  extern OpPtr MakeSumExp(); add(MakeSumExp());
  extern OpPtr MakePick(); add(MakePick());

  // Neural networks.
  extern OpPtr MakeSoftmax(); add(MakeSoftmax());
  extern OpPtr MakeSoftmaxGrad(); add(MakeSoftmaxGrad());
  extern OpPtr MakeLayerNorm(); add(MakeLayerNorm());
  extern OpPtr MakeLayerNormGrad(); add(MakeLayerNormGrad());
  extern OpPtr MakeLayerNormWeightGrad(); add(MakeLayerNormWeightGrad());
  extern OpPtr MakeRmsNorm(); add(MakeRmsNorm());
  extern OpPtr MakeRmsNormGrad(); add(MakeRmsNormGrad());
  extern OpPtr MakeRmsNormWeightGrad(); add(MakeRmsNormWeightGrad());
  extern OpPtr MakeRotary(); add(MakeRotary());
  extern OpPtr MakeConv2d(); add(MakeConv2d());
  extern OpPtr MakeConv2dInputGrad(); add(MakeConv2dInputGrad());
  extern OpPtr MakeConv2dWeightGrad(); add(MakeConv2dWeightGrad());
  extern OpPtr MakeMaxPool2d(); add(MakeMaxPool2d());
  extern OpPtr MakeMaxPool2dGrad(); add(MakeMaxPool2dGrad());
  extern OpPtr MakeAvgPool2d(); add(MakeAvgPool2d());
  extern OpPtr MakeAvgPool2dGrad(); add(MakeAvgPool2dGrad());
  extern OpPtr MakeBatchNorm(); add(MakeBatchNorm());
  extern OpPtr MakeBatchNormGrad(); add(MakeBatchNormGrad());
  extern OpPtr MakeBatchNormInference(); add(MakeBatchNormInference());
  extern OpPtr MakeBatchNormWeightGrad(); add(MakeBatchNormWeightGrad());
  extern OpPtr MakeChannelVariance(); add(MakeChannelVariance());
  extern OpPtr MakeEmbedding(); add(MakeEmbedding());
  extern OpPtr MakeEmbeddingGrad(); add(MakeEmbeddingGrad());
  extern OpPtr MakeAttention(); add(MakeAttention());
  extern OpPtr MakeAttentionGrad(); add(MakeAttentionGrad());
  extern OpPtr MakeAttentionParts(); add(MakeAttentionParts());
  extern OpPtr MakeBlockAttention(); add(MakeBlockAttention());
  extern OpPtr MakeBlockAttentionGrad(); add(MakeBlockAttentionGrad());
  extern OpPtr MakeCachedAttention(); add(MakeCachedAttention());
  extern OpPtr MakeQkvAttention(); add(MakeQkvAttention());
  extern OpPtr MakeQkvAttentionGrad(); add(MakeQkvAttentionGrad());
  extern OpPtr MakeCrossEntropy(); add(MakeCrossEntropy());
  extern OpPtr MakeCrossEntropyGrad(); add(MakeCrossEntropyGrad());
  extern OpPtr MakeTopK(); add(MakeTopK());
  extern OpPtr MakeExpertSlots(); add(MakeExpertSlots());
  extern OpPtr MakeDispatch(); add(MakeDispatch());
  extern OpPtr MakeCombine(); add(MakeCombine());
  extern OpPtr MakeCombineWeightGrad(); add(MakeCombineWeightGrad());

  // Random numbers and sources.
  extern OpPtr MakeDropout(); add(MakeDropout());
  extern OpPtr MakeRandomUniform(); add(MakeRandomUniform());
  extern OpPtr MakeRandomNormal(); add(MakeRandomNormal());
  extern OpPtr MakeIota(); add(MakeIota());
  extern OpPtr MakeConstant(); add(MakeConstant());
  extern OpPtr MakeInput(); add(MakeInput());
  extern OpPtr MakeParameter(); add(MakeParameter());
  extern OpPtr MakeState(); add(MakeState());

  // State and optimizers.
  extern OpPtr MakeAssign(); add(MakeAssign());
  extern OpPtr MakeAdamw(); add(MakeAdamw());
  extern OpPtr MakeSgd(); add(MakeSgd());

  // Made by the planner.
  extern OpPtr MakeReceive(); add(MakeReceive());
  extern OpPtr MakeReshard(); add(MakeReshard());
  extern OpPtr MakeLocalSlice(); add(MakeLocalSlice());
  extern OpPtr MakeAllGather(); add(MakeAllGather());
  extern OpPtr MakeAllToAll(); add(MakeAllToAll());
  extern OpPtr MakePermute(); add(MakePermute());
  extern OpPtr MakeHaloExchange(); add(MakeHaloExchange());
  extern OpPtr MakeAllReduce(); add(MakeAllReduce());
  extern OpPtr MakeReduceScatter(); add(MakeReduceScatter());
  extern OpPtr MakeGatherMicrobatches(); add(MakeGatherMicrobatches());
  extern OpPtr MakeJoinSubBatches(); add(MakeJoinSubBatches());
  extern OpPtr MakeAccumulate(); add(MakeAccumulate());
  extern OpPtr MakeCopy(); add(MakeCopy());
  extern OpPtr MakeToHost(); add(MakeToHost());
  extern OpPtr MakeToDevice(); add(MakeToDevice());
  // clang-format on
}

}  // namespace ops

OpRegistry BuiltinOps() {
  OpRegistry registry;
  ops::AddAll(registry);
  return registry;
}

}  // namespace penstock::graph
