//! How many experts layers have, and how long they are. In: layers. Out: numbers of experts that run
//! through all layers, and the bytes of each.

use crate::error::{Error, Result};

/// Most experts of all layers together.
const MOST_EXPERTS: usize = 1 << 24;

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// How many there are, at least 1.
    pub num_experts: usize,
    /// Bytes of each, at least 1.
    pub num_bytes: u64,
}

/// The experts of all layers, numbered layer by layer.
#[derive(Clone, Debug)]
pub struct Shape {
    layers: Vec<LayerShape>,
    /// The number of each layer's first expert, and how many there are in all.
    first: Vec<usize>,
    layer_of: Vec<u32>,
}

impl Shape {
    /// The experts of `layers`, in the order in which these run. Fails where they are more than 2^24, or
    /// have 2^64 bytes together.
    pub fn new(layers: Vec<LayerShape>) -> Result<Self> {
        let (mut first, mut layer_of) = (vec![0], Vec::new());
        let mut all_bytes = Some(0_u64);
        for (index, layer) in layers.iter().enumerate() {
            let end: usize = layer.num_experts.saturating_add(first[index]);
            all_bytes = layer
                .num_bytes
                .checked_mul(layer.num_experts as u64)
                .and_then(|num_bytes| num_bytes.checked_add(all_bytes?));
            if end > MOST_EXPERTS || all_bytes.is_none() {
                let must = "at most 16777216 in all, of fewer than 2^64 bytes";
                let got = format!("{} of {} bytes", layer.num_experts, layer.num_bytes);
                return Err(Error::BadOption { what: "a layer's experts", got, must });
            }
            first.push(end);
            layer_of.resize(end, index as u32);
        }
        Ok(Self { layers, first, layer_of })
    }

    /// All layers.
    pub fn layers(&self) -> &[LayerShape] {
        &self.layers
    }

    /// Number of experts of all layers.
    pub fn num_experts(&self) -> usize {
        self.layer_of.len()
    }

    /// The numbers of a layer's experts.
    pub fn of_layer(&self, layer: usize) -> std::ops::Range<usize> {
        self.first[layer]..self.first[layer + 1]
    }

    /// The layer of an expert.
    pub fn layer(&self, expert: usize) -> usize {
        self.layer_of[expert] as usize
    }

    /// Bytes of an expert.
    pub fn num_bytes(&self, expert: usize) -> u64 {
        self.layers[self.layer(expert)].num_bytes
    }

    /// Bytes of all experts.
    pub fn all_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.num_bytes * layer.num_experts as u64).sum()
    }

    /// The least bytes within which any step runs: all experts of the largest layer, which are held
    /// while a wide step or a prompt's rows ask for all of them.
    pub fn least_bytes(&self) -> u64 {
        let all = |layer: &LayerShape| layer.num_bytes * layer.num_experts as u64;
        self.layers.iter().map(all).max().unwrap_or(0)
    }
}
