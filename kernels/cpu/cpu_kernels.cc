// The list of the CPU's kernels: one line a kernel, sorted. A line declares the function that makes
// the definition, in a file of its own, and adds it under the operator's name. What a kernel does
// not do in 16 bits itself, it does by conversion (converting.h).

#include <cassert>
#include <string>
#include <utility>

#include "kernels/cpu/converting.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

KernelRegistry CpuKernels() {
  KernelRegistry registry;
  const TrialDevice trial = MakeTrialDevice();
  const auto add = [&](std::string op, KernelDef def) {
    [[maybe_unused]] const absl::Status status =
        registry.Add(std::move(op), WithConversions(std::move(def), trial));
    assert(status.ok());  // a name is listed once
  };
  using Def = KernelDef;
  // clang-format off
  extern Def AbsKernel(); add("abs", AbsKernel());
  extern Def AccumulateKernel(); add("accumulate", AccumulateKernel());
  extern Def AdamwKernel(); add("adamw", AdamwKernel());
  extern Def AddKernel(); add("add", AddKernel());
  extern Def AttentionKernel(); add("attention", AttentionKernel());
  extern Def AttentionGradKernel(); add("attention_grad", AttentionGradKernel());
  extern Def AttentionPartsKernel(); add("attention_parts", AttentionPartsKernel());
  extern Def AvgPool2dKernel(); add("avg_pool2d", AvgPool2dKernel());
  extern Def AvgPool2dGradKernel(); add("avg_pool2d_grad", AvgPool2dGradKernel());
  extern Def BatchNormKernel(); add("batch_norm", BatchNormKernel());
  extern Def BatchNormGradKernel(); add("batch_norm_grad", BatchNormGradKernel());
  extern Def BatchNormInferenceKernel(); add("batch_norm_inference", BatchNormInferenceKernel());
  extern Def BatchNormWeightGradKernel(); add("batch_norm_weight_grad", BatchNormWeightGradKernel());
  extern Def BiasAddKernel(); add("bias_add", BiasAddKernel());
  extern Def BiasGeluKernel(); add("bias_gelu", BiasGeluKernel());
  extern Def BiasGeluGradKernel(); add("bias_gelu_grad", BiasGeluGradKernel());
  extern Def BlockAttentionKernel(); add("block_attention", BlockAttentionKernel());
  extern Def BlockAttentionGradKernel(); add("block_attention_grad", BlockAttentionGradKernel());
  extern Def BroadcastKernel(); add("broadcast", BroadcastKernel());
  extern Def CachedAttentionKernel(); add("cached_attention", CachedAttentionKernel());
  extern Def CastKernel(); add("cast", CastKernel());
  extern Def ChannelVarianceKernel(); add("channel_variance", ChannelVarianceKernel());
  extern Def CombineKernel(); add("combine", CombineKernel());
  extern Def CombineWeightGradKernel(); add("combine_weight_grad", CombineWeightGradKernel());
  extern Def ConcatKernel(); add("concat", ConcatKernel());
  extern Def ConstantKernel(); add("constant", ConstantKernel());
  extern Def Conv2dKernel(); add("conv2d", Conv2dKernel());
  extern Def Conv2dInputGradKernel(); add("conv2d_input_grad", Conv2dInputGradKernel());
  extern Def Conv2dWeightGradKernel(); add("conv2d_weight_grad", Conv2dWeightGradKernel());
  extern Def CopyKernel(); add("copy", CopyKernel());
  add("to_device", CopyKernel());
  add("to_host", CopyKernel());
  extern Def CosKernel(); add("cos", CosKernel());
  extern Def CrossEntropyKernel(); add("cross_entropy", CrossEntropyKernel());
  extern Def CrossEntropyGradKernel(); add("cross_entropy_grad", CrossEntropyGradKernel());
  extern Def DispatchKernel(); add("dispatch", DispatchKernel());
  extern Def DivKernel(); add("div", DivKernel());
  extern Def DropoutKernel(); add("dropout", DropoutKernel());
  extern Def DynamicSliceKernel(); add("dynamic_slice", DynamicSliceKernel());
  extern Def DynamicUpdateSliceKernel(); add("dynamic_update_slice", DynamicUpdateSliceKernel());
  extern Def EinsumKernel(); add("einsum", EinsumKernel());
  extern Def EpilogueKernel();  // of any product with an epilogue
  const Def epilogue = EpilogueKernel();
  add("einsum_bias", epilogue);
  add("einsum_bias_gelu", epilogue);
  add("einsum_gelu_grad", epilogue);
  extern Def EmbeddingKernel(); add("embedding", EmbeddingKernel());
  extern Def EmbeddingGradKernel(); add("embedding_grad", EmbeddingGradKernel());
  extern Def EqualKernel(); add("equal", EqualKernel());
  extern Def ExpKernel(); add("exp", ExpKernel());
  extern Def ExpertSlotsKernel(); add("expert_slots", ExpertSlotsKernel());
  extern Def GatherMicrobatchesKernel(); add("gather_microbatches", GatherMicrobatchesKernel());
  extern Def GeluKernel(); add("gelu", GeluKernel());
  extern Def GeluGradKernel(); add("gelu_grad", GeluGradKernel());
  extern Def GreaterKernel(); add("greater", GreaterKernel());
  extern Def IotaKernel(); add("iota", IotaKernel());
  extern Def JoinHaloKernel(); add("join_halo", JoinHaloKernel());
  extern Def JoinTilesKernel(); add("join_tiles", JoinTilesKernel());
  extern Def LayerNormKernel(); add("layer_norm", LayerNormKernel());
  extern Def LayerNormGradKernel(); add("layer_norm_grad", LayerNormGradKernel());
  extern Def LayerNormWeightGradKernel(); add("layer_norm_weight_grad", LayerNormWeightGradKernel());
  extern Def LessKernel(); add("less", LessKernel());
  extern Def LocalSliceKernel(); add("local_slice", LocalSliceKernel());
  extern Def LogKernel(); add("log", LogKernel());
  extern Def MatmulKernel(); add("matmul", MatmulKernel());
  extern Def MaxKernel(); add("max", MaxKernel());
  extern Def MaxPool2dKernel(); add("max_pool2d", MaxPool2dKernel());
  extern Def MaxPool2dGradKernel(); add("max_pool2d_grad", MaxPool2dGradKernel());
  extern Def MinKernel(); add("min", MinKernel());
  extern Def MulKernel(); add("mul", MulKernel());
  extern Def NegKernel(); add("neg", NegKernel());
  extern Def PackKernel(); add("pack", PackKernel());
  extern Def PadKernel(); add("pad", PadKernel());
  extern Def PickKernel(); add("pick", PickKernel());
  extern Def QkvAttentionKernel(); add("qkv_attention", QkvAttentionKernel());
  extern Def QkvAttentionGradKernel(); add("qkv_attention_grad", QkvAttentionGradKernel());
  extern Def RandomNormalKernel(); add("random_normal", RandomNormalKernel());
  extern Def RandomUniformKernel(); add("random_uniform", RandomUniformKernel());
  extern Def ReduceMaxKernel(); add("reduce_max", ReduceMaxKernel());
  extern Def ReduceMeanKernel(); add("reduce_mean", ReduceMeanKernel());
  extern Def ReduceSumKernel(); add("reduce_sum", ReduceSumKernel());
  extern Def ReluKernel(); add("relu", ReluKernel());
  extern Def ReshapeKernel(); add("reshape", ReshapeKernel());
  extern Def RmsNormKernel(); add("rms_norm", RmsNormKernel());
  extern Def RmsNormGradKernel(); add("rms_norm_grad", RmsNormGradKernel());
  extern Def RmsNormWeightGradKernel(); add("rms_norm_weight_grad", RmsNormWeightGradKernel());
  extern Def RollKernel(); add("roll", RollKernel());
  extern Def RotaryKernel(); add("rotary", RotaryKernel());
  extern Def RsqrtKernel(); add("rsqrt", RsqrtKernel());
  extern Def SgdKernel(); add("sgd", SgdKernel());
  extern Def SigmoidKernel(); add("sigmoid", SigmoidKernel());
  extern Def SiluKernel(); add("silu", SiluKernel());
  extern Def SinKernel(); add("sin", SinKernel());
  extern Def SliceKernel(); add("slice", SliceKernel());
  extern Def SoftmaxKernel(); add("softmax", SoftmaxKernel());
  extern Def SoftmaxGradKernel(); add("softmax_grad", SoftmaxGradKernel());
  extern Def SplitKernel(); add("split", SplitKernel());
  extern Def SqrtKernel(); add("sqrt", SqrtKernel());
  extern Def SquareKernel(); add("square", SquareKernel());
  extern Def SubKernel(); add("sub", SubKernel());
  extern Def SumExpKernel(); add("sum_exp", SumExpKernel());
  extern Def SumSquaresKernel(); add("sum_squares", SumSquaresKernel());
  extern Def TanhKernel(); add("tanh", TanhKernel());
  extern Def TopKKernel(); add("top_k", TopKKernel());
  extern Def TransposeKernel(); add("transpose", TransposeKernel());
  extern Def UnpackKernel(); add("unpack", UnpackKernel());
  extern Def WhereKernel(); add("where", WhereKernel());
  // clang-format on
  return registry;
}

}  // namespace penstock::kernels
