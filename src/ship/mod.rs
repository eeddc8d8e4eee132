//! Handing finished work on: training data and whatever else a trainer takes.

pub mod actions;
pub mod compact;
pub mod dataset;
pub mod groups;
pub mod parquet;
pub mod row;
