// Names of values of repeated layers, which models give numbers to: "h12.mlp.w1".
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_DRAW_LAYER_NAMES_H_
#define PENSTOCK_PLANNER_DRAW_LAYER_NAMES_H_

#include <string>
#include <string_view>

namespace penstock::planner {

// "h12.mlp.w1" as "h*.mlp.w1". A number is a layer's if a dot follows, unlike that of "w1".
std::string WithoutLayer(std::string_view name);

// "h12" of "h12.mlp.w1"; empty without a layer.
std::string_view LayerOf(std::string_view name);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_DRAW_LAYER_NAMES_H_
