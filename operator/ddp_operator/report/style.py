"""Style sheet of the report page, which loads no other file."""

STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--text:#1b2330;--soft:#5b6676;--line:#dfe3e9;
--grid:#e8ebf0;--s1:#1f6feb;--s2:#c2410c;--s3:#0f7b5f;--s4:#7a3fc4;--s5:#b8860b;--s6:#0b7285;
--s7:#c2255c;--s8:#5f6b2d;--ok:#1a7f4b;--run:#1f6feb;--app:#cf222e;--infra:#c2570c;--free:#8590a2;
--bar:#fff}
@media (prefers-color-scheme:dark){:root{--bg:#0f141b;--card:#171e28;--text:#e6ebf2;--soft:#98a4b5;
--line:#2a3442;--grid:#232c39;--s1:#6aa8ff;--s2:#ff9a5c;--s3:#4cc9a0;--s4:#bb9af7;--s5:#e5c04b;
--s6:#5cc8dc;--s7:#ff85ad;--s8:#b5c26a;--ok:#3fb97a;--run:#6aa8ff;--app:#ff6b72;--infra:#ff9a5c;
--free:#8590a2;--bar:#0f141b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:24px;line-height:1.25;margin:0}
h2{font-size:15px;margin:0}
header,.head,.legend,.figures,.missing,footer,td{overflow-wrap:anywhere}
.head>*,.legend li{min-width:0}
header p{margin:6px 0 0;color:var(--soft)}
h1 .state{display:inline-block;margin-left:8px;padding:1px 10px;border-radius:11px;font-size:14px;
font-weight:600;vertical-align:3px;color:var(--bar);background:var(--free)}
h1 .state.completed{background:var(--ok)}h1 .state.running{background:var(--run)}
h1 .state.failed{background:var(--app)}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;
margin-top:14px}
.figures{display:grid;grid-template-columns:repeat(4,1fr);gap:10px;margin:16px 0 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px
14px;min-width:0}
dt{color:var(--soft);font-size:13px}
dd{margin:2px 0 0;font-size:19px;font-weight:600}
dd small{display:block;font-size:13px;font-weight:400;color:var(--soft)}
.head{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:baseline;margin-bottom:6px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;color:var(--soft);font-size:13px;margin:0;
padding:0;list-style:none}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:6px;
vertical-align:3px;background:currentColor}
.legend i.area{height:10px;opacity:.3;vertical-align:0}
.legend i.square{height:10px;width:10px;vertical-align:-1px}
h2 .note{font-weight:400}
.note{color:var(--soft);font-size:13px;margin:4px 0 0;overflow-wrap:anywhere}
.missing{border-left:4px solid var(--s5)}
.missing ul{margin:6px 0 0;padding-left:20px}
svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif}
svg.narrow{display:none}
.grid{stroke:var(--grid);fill:none}
.tick{fill:var(--soft)}
.line{fill:none;stroke:currentColor;stroke-width:1.6;stroke-linejoin:round}
.dots{fill:none;stroke:currentColor;stroke-width:5;stroke-linecap:round}
.band{fill:currentColor;opacity:.2}
.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}
.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}.s8{color:var(--s8)}
.completed{color:var(--ok)}.running{color:var(--run)}.application{color:var(--app)}
.infrastructure{color:var(--infra)}.free,.unknown,.attempt{color:var(--free)}
.hover,.target{fill:transparent;stroke:transparent}
.target{stroke-width:9}
.hover:hover{fill:var(--soft);opacity:.14}
.mark path{stroke:currentColor}.mark .head{fill:currentColor}
.mark.attempt path{stroke-dasharray:3 3}
.mark .target{stroke:transparent}
.bar rect{fill:currentColor}
.bar text{fill:var(--bar);font-weight:600}
.saves path{stroke:var(--soft);stroke-width:4;stroke-linecap:round}
.stack{display:flex;height:22px;border-radius:4px;overflow:hidden;margin:8px 0 6px;gap:1px}
.stack span{background:currentColor;min-width:2px}
.table{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:500;font-size:13px;white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.n,td.n{width:1%}
table.ranks{max-width:640px}
td.n,td.word{overflow-wrap:normal}
td:not(.n){min-width:90px}
td.wrap{min-width:180px;width:60%}
.meter{display:block;height:8px;margin-top:7px;border-radius:2px;background:var(--s4)}
footer{color:var(--soft);font-size:13px;margin-top:18px}
@media (max-width:820px){main{padding:16px 12px 32px}svg.wide{display:none}svg.narrow{display:block}
section{padding:12px}svg.narrow{max-width:560px}.figures{grid-template-columns:1fr 1fr}
table.stacked thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table.stacked tr{display:block;padding:6px 0;border-bottom:1px solid var(--line)}
table.stacked tbody tr:last-child{border-bottom:0}
table.stacked td{display:flex;gap:10px;border:0;padding:2px 0;text-align:left;
white-space:normal;min-width:0;width:auto}
table.stacked td::before{content:attr(data-label);flex:0 0 92px;
color:var(--soft);font-weight:400;font-size:13px}
table.stacked td:empty{display:none}}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
