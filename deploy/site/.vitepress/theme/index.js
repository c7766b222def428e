// The theme of VitePress with the switcher between versions. It is without VitePress's fonts: a page uses those of
// the reader.
import { h } from 'vue'
import DefaultTheme from 'vitepress/theme-without-fonts'
import Versions from './Versions.vue'
import './style.css'

export default {
  extends: DefaultTheme,
  Layout: () => h(DefaultTheme.Layout, null, {
    'nav-bar-content-before': () => h(Versions, { class: 'in-bar' }),
    'nav-screen-content-before': () => h(Versions, { class: 'in-menu' }),
  }),
}
