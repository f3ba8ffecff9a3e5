//! What each operator takes and gives: the types and the number of its inputs and outputs.

use ort_sys::ONNXTensorElementDataType as ElementType;

/// Of inputs, of scales and of what is not rounded.
pub const FLOAT: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
/// Of rounded rows.
pub const BYTE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;

/// What an operator computes.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    FineRows,
    NormRows,
    FineNormRows,
    JoinNormRows,
    FineGateRows,
    Joined,
}

impl Kind {
    pub const fn num_inputs(self) -> usize {
        match self {
            Self::FineRows => 1,
            Self::JoinNormRows => 4,
            _ => 2,
        }
    }

    /// Rows, and the scale of each; before them what is not rounded, or that alone.
    pub const fn outputs(self) -> &'static [ElementType] {
        match self {
            Self::JoinNormRows => &[FLOAT, BYTE, FLOAT],
            Self::Joined => &[FLOAT],
            _ => &[BYTE, FLOAT],
        }
    }

    pub const fn is_normed(self) -> bool {
        matches!(self, Self::NormRows | Self::FineNormRows | Self::JoinNormRows)
    }

    /// Whether its rows are followed by the rests of all.
    pub const fn is_fine(self) -> bool {
        matches!(self, Self::FineRows | Self::FineNormRows | Self::FineGateRows)
    }
}
