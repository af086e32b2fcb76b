//! A report as one page of HTML: style and plots are inside it, so that it can be mailed and kept.

use maud::{DOCTYPE, PreEscaped, html};

use super::svg;
use crate::Report;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;\
    color:#222;background:#fff}h1{font-size:1.6rem}h2{font-size:1.1rem;margin-top:2rem}\
    table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
    th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}\
    th:first-child,td:first-child{text-align:left}td.words{text-align:left}\
    .holds,.fails,.unknown{white-space:nowrap}.holds{color:#176d2f}.fails{color:#b00020;font-weight:bold}.unknown{color:#777}\
    figure{margin:0}td.words.fails{white-space:normal}svg{max-width:100%;height:auto}.plots{display:flex;flex-wrap:wrap;gap:1rem}code{overflow-wrap:anywhere}";

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    let title = format!("varve lab {}", report.experiment);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p { (report.summary) }
                table {
                    @for (name, value) in super::facts(report) {
                        tr { th { (name) } td.words { code { (value) } } }
                    }
                    @for (name, about) in &report.targets {
                        tr { th { (name) } td.words { (about) } }
                    }
                    @for (name, why) in &report.skipped {
                        tr { th { (name) } td.words.fails { "not run: " (why) } }
                    }
                }
                @if !report.claims.is_empty() {
                    h2 { "What VarveFS has to show" }
                    table {
                        @for claim in &report.claims {
                            @let class = match claim.holds {
                                Some(true) => "holds",
                                Some(false) => "fails",
                                None => "unknown",
                            };
                            tr { td { (claim.claim) } td { (claim.measured) } td class=(class) { (claim.verdict()) } }
                        }
                    }
                }
                div.plots {
                    @for plot in &report.plots {
                        figure { h2 { (plot.title) } (PreEscaped(svg::draw(plot))) }
                    }
                }
                @for table in &report.tables {
                    h2 { (table.title) }
                    table {
                        tr { @for column in &table.columns { th { (column) } } }
                        @for row in &table.rows { tr { @for cell in row { td { (cell) } } } }
                    }
                }
            }
        }
    }
    .into_string()
}
