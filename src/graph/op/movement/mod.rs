pub mod center_crop_pad;
pub mod compress;
pub mod concat;
pub mod constant_of_shape;
pub mod depth_to_space;
pub mod expand;
pub mod eye_like;
pub mod gather;
pub mod gather_e0m;
pub mod gather_elements;
pub mod gather_nd;
pub mod non_zero;
pub mod one_hot;
pub mod pad;
pub mod range;
pub mod reshape;
pub mod reverse_sequence;
pub mod scatter;
pub mod shape_of;
pub mod size_of;
pub mod slice;
pub mod split;
pub mod tensor_scatter;
pub mod tile;
pub mod transpose;
pub mod trilu;
pub mod unique;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &center_crop_pad::DEF,
    &compress::DEF,
    &concat::DEF,
    &constant_of_shape::DEF,
    &depth_to_space::DEF,
    &expand::DEF,
    &eye_like::DEF,
    &gather::DEF,
    &gather_e0m::DEF,
    &gather_elements::DEF,
    &gather_nd::DEF,
    &non_zero::DEF,
    &one_hot::DEF,
    &pad::DEF,
    &range::DEF,
    &reshape::DEF,
    &reverse_sequence::DEF,
    &scatter::DEF,
    &shape_of::DEF,
    &size_of::DEF,
    &slice::DEF,
    &split::DEF,
    &tensor_scatter::DEF,
    &tile::DEF,
    &transpose::DEF,
    &trilu::DEF,
    &unique::DEF,
];
